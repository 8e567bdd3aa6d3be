"""The manifests of one query and sink in a folder: which data files are committed, a whole batch at
a time.

``<path>/_onceforall/manifests/<query id>/<sink code>/`` holds

- ``<batch>.json``: the files of one batch. It is created with its whole content at once (temp file,
  sync, link, sync of the folder), and never over one that is there: that is the moment in which the
  batch is there for readers of manifests. Nobody changes it afterwards.
- ``<after>-<upto>.json``: the same for all batches above *after* up to *upto*, merged, so that a
  reader opens few files. After 100 batches those are merged into one such file, and 100 of those
  into one, but for those that have become large: no merge costs more for all that was written
  before.

Each has ``after``, the batch that this query and sink committed before it (-1: none), so that a
reader knows whether it has them all: it goes from -1 on, takes what begins where the last one
ended, the longest first, and lists the folder again when something is missing. So a snapshot is
always a beginning of the sequence of batches, and a later snapshot is never shorter, whatever is
written, merged or deleted meanwhile. What was merged is deleted only at the next merge, about 100
batches later: a reader that listed it has read it by then, or lists again.

A driver that was frozen before its link, and wakes after its successor has committed, merged and
deleted the batch's manifest, creates a manifest of that batch once more. No reader looks at it: the
merged one is longer. The next merge deletes it.

The last manifest has no later one that names it, so it could be deleted and nobody would miss it.
Hence its second name, ``.newest.<batch>``, a hard
link: a snapshot that ends before the batch of such a name lacks a manifest. It says *at least* this
batch, and nothing else; a reader goes by the name alone. What a writer can leave behind, by the
step at which it was killed:

1. before the manifest's link, or before the folder was synced: the second name is that of an
   earlier batch. A reader sees the batch or not; nothing is missed.
2. behind that sync, before the second link: the same. The next start finds the batch decided and
not done, and makes the second name.
3. behind it: all is there. The second name of the batch before is left in place, and those of
   earlier ones are deleted, of which any number may be left: the greatest counts.

The second name is made only behind the sync of the first, so a loss of power can't leave the second
one alone, and it has no sync of its own: the next manifest's makes it durable. Until then a loss of
power can take it, and with it nothing but the watch over one batch. That is why the one of the
batch before stays: it is durable.

A driver of an older release passes over these names, as do its readers and its start: then the
greatest is behind the last batch, and is right nevertheless. A folder without such a name is read
as ever. A late writer makes none where a later one, or a later manifest, is listed; one that it
makes all the same is less than the greatest. A listing may have the second name and not the first,
because folders aren't listed in one
instant: the first is opened by its name then. A second name whose manifest is missing is never
deleted: ``mending`` puts the manifest back from it.

The content is JSON with a checksum, as entries of the commit log (``commit_log.envelope``); a
damaged one is named, not believed.
"""
