"""What a sink of the conformance suite's tests has in another file than its own: a copy that a kill
tears.
"""

import uuid


def publish(folder, name):
    """Show a prepared file, under another name each time; False when it is lost."""
    temporary, done = folder / f"{name}.tmp", folder / f"{name}.done"
    if temporary.exists():
        shown = folder / f"{name}-{uuid.uuid4().hex}.jsonl"
        shown.write_text(temporary.read_text())
        done.touch()
        temporary.unlink()
    return done.exists()
