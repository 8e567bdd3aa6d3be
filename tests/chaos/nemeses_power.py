"""Loss of power: the checkpoint's file system forgets what was not synced."""

import os
import shutil

from chaos.arena import UNNOTICED
from chaos.nemeses_siege import Siege
from chaos.nemeses_times import until_killed
from support import power

DISK_MB = 256
AT = (
    "append_commit.before",
    "append_commit.after",
    "commit.after",
    "append_done.after",
    "return_batch.after_done",
    "write.job.before",
)


def power_can_be_cut():
    """Whether this user can mount a file system of its own and shut it down."""
    return os.geteuid() == 0 and all(
        map(shutil.which, ("mount", "mkfs.ext4", "losetup", "findmnt"))
    )


def power_cut(arena):
    """The driver dies, and what it, or Spark, had not synced in the checkpoint is gone: at some
    step of a batch, or at a random moment.

    Whatever is left, plain restarts complete what was decided, and go on. Early on, as long as
    little was ever synced, and later.
    """
    rng = arena.rng
    servers = arena.servers()
    world = arena.world(
        rng.choice(["kafka", "all"]), servers, **_source(rng), trigger="500 milliseconds"
    )
    image = power.make_image(world.folder / "checkpoint.ext4", DISK_MB)
    power.mount(image, world.checkpoint)
    arena.at_the_end(power.unmount, world.checkpoint)
    # Before the disk goes, what uses it goes.
    arena.at_the_end(world.close)
    (world.checkpoint / "lost+found").rmdir()
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        if rng.random() < 0.6:
            siege.end_driver()
            point = rng.choice(AT)
            siege.driver = world.start(**siege.config, armed=f"{point}=kill@{rng.randint(1, 3)}")
            until_killed(siege)
        else:
            siege.a_moment()
            siege.kill_driver()
            point = "a random moment"
        before = _files(world.checkpoint)
        power.cut_power(world.checkpoint)
        lost = sum(
            content != _files(world.checkpoint).get(file) for file, content in before.items()
        )
        siege.struck(f"power cut at {point}" + ("" if lost else UNNOTICED))
        siege.go_on()
    siege.judge()


def _source(rng):
    return rng.choice([{"rows_per_batch": 2000}, {"source": {"partitions": [rng.randint(1, 4)]}}])


def _files(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
