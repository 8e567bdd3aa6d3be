"""What identifies a machine and the storage of a checkpoint: with fakes of the kernel's files,
and on real file systems."""

import os
import pwd
import re
import shutil
from dataclasses import replace

import pytest

from onceforall.common.machine import whoami
from onceforall.driver import place
from onceforall.driver.place import here, storage_of
from onceforall.protocol.entries import Claim
from onceforall.protocol.judgement import judge_claim
from onceforall.protocol.state import RunConfig
from support.power import mount, powered_disk, unmount


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "mnt" / "cp"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def kernel(tmp_path, folder):
    """Fakes of the kernel's files: ``kernel(kind, {file below /sys: content})`` returns what the
    folder's storage is."""

    def tell(kind, devices=(), disk="nvme0n1", partition=None):
        mounts, sysfs = tmp_path / "mountinfo", tmp_path / "sys"
        lines = [
            "22 1 8:1 / / rw - xfs /dev/root rw",
            f"30 22 259:3 / {tmp_path}/mnt rw,relatime shared:1 - {kind} /dev/x rw",
            "31 22 259:4 / /elsewhere rw - tmpfs none rw",
            f"32 22 259:4 / /elsewhere{tmp_path}/mnt/cp rw - tmpfs none rw",
        ]
        mounts.write_text("\n".join(lines) + "\n")
        shutil.rmtree(sysfs, ignore_errors=True)
        target = sysfs / "devices" / disk
        for name, content in dict(devices).items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(content)
        if partition:
            target /= partition
            target.mkdir(parents=True)
            (target / "partition").write_text("3")
        device = folder.stat().st_dev
        link = sysfs / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
        link.parent.mkdir(parents=True)
        target.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        return storage_of(folder, mounts=mounts, sysfs=sysfs)

    return tell


def test_a_disks_serial_its_file_systems_id_and_the_folders_inode_are_told(kernel, folder):
    told = kernel("ext4", {"device/serial": "vol0a1b2c3 \n"})
    assert told == {
        "type": "ext4",
        "id": f"{os.statvfs(folder).f_fsid:x}",
        "folder": str(folder.stat().st_ino),
        "nvme-serial": "vol0a1b2c3",
    }


def test_a_partition_has_the_serial_of_its_disk(kernel):
    assert (
        kernel("ext4", {"device/wwid": "naa.5000"}, disk="sda", partition="sda3")["scsi-wwid"]
        == "naa.5000"
    )


def test_a_logical_volume_has_the_serial_of_the_one_disk_below_it_and_none_where_there_are_several(
    kernel, tmp_path
):
    kernel("ext4", {"serial": "virtual"}, disk="vda")
    slaves = tmp_path / "sys" / "devices" / "dm-0" / "slaves"
    slaves.mkdir(parents=True)
    (slaves / "vda").symlink_to(tmp_path / "sys" / "devices" / "vda")
    (link,) = (tmp_path / "sys" / "dev" / "block").iterdir()
    link.unlink()
    link.symlink_to(slaves.parent)
    told = lambda: storage_of(
        tmp_path / "mnt" / "cp", mounts=tmp_path / "mountinfo", sysfs=tmp_path / "sys"
    )
    assert told()["virtio-serial"] == "virtual"
    (slaves / "vdb").symlink_to(tmp_path / "sys" / "devices" / "vda")
    assert "virtio-serial" not in told()


def test_the_id_of_xfs_is_made_of_device_numbers_and_not_used(kernel):
    assert set(kernel("xfs")) == {"type", "folder"}


@pytest.mark.parametrize("kind", ["nfs4", "overlay", "tmpfs", "fuse.sshfs"])
def test_of_what_is_no_local_disk_only_the_kind_is_told(kernel, kind):
    assert kernel(kind, {"device/serial": "x"}) == {"type": kind}


def test_a_mount_point_with_a_blank_is_found(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path}/a\\040b rw - tmpfs x rw\n")
    assert storage_of(folder, mounts=mounts) == {"type": "tmpfs"}


def test_of_two_mounts_at_one_place_the_later_one_counts(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path} rw - nfs4 x rw\n"
        f"3 2 0:3 / {tmp_path} rw - tmpfs x rw\n"
    )
    assert storage_of(tmp_path, mounts=mounts) == {"type": "tmpfs"}


def test_nothing_is_raised_where_nothing_can_be_found_out(tmp_path, monkeypatch):
    assert storage_of(tmp_path / "missing") == {}
    assert storage_of(tmp_path, mounts=tmp_path / "missing") == {}
    monkeypatch.setattr(
        place.Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(PermissionError())
    )
    assert here(tmp_path).host


def judged(before, now):
    """Judge a start on other storage, on another machine."""
    config = RunConfig(
        "query", "run", "/cp", ("out",), host="node-2", boot_id="boot-2", storage=now.storage
    )
    return judge_claim(
        config, Claim("query", "run", "/cp", "me", before.host, before.boot_id, before.storage)
    )


def test_a_real_clone_of_a_volume_is_told_from_the_volume_that_is_mounted_again(tmp_path):
    with powered_disk(tmp_path / "disk", size_mb=16) as disk:
        (disk / "cp").mkdir()
        original = replace(here(disk / "cp"), host="node-1")
        unmount(disk)
        image, clone = tmp_path / "disk.ext4", tmp_path / "clone.ext4"
        shutil.copy(image, clone)
        mount(image, disk)
        assert judged(original, here(disk / "cp")) is None
        unmount(disk)
        mount(clone, disk)
        cloned = here(disk / "cp")
        assert cloned.storage["id"] == original.storage["id"], (
            "a clone block by block has the same id"
        )
        assert judged(original, cloned) is not None


def test_mounts_with_any_character_in_their_path_are_read(tmp_path):
    mounts = tmp_path / "mountinfo"
    lines = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:5 / /other\u2028one\x85 rw - tmpfs tmpfs rw",
        f"3 1 0:6 / {tmp_path}/donn\u00e9es\\040x rw - nfs4 server:/ rw",
    )
    mounts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder = tmp_path / "donn\u00e9es x" / "cp"
    folder.mkdir(parents=True)
    assert storage_of(folder, mounts=mounts) == {"type": "nfs4"}
    mounts.write_text("nothing that is known")
    assert storage_of(folder, mounts=mounts) == {}


@pytest.mark.parametrize("error", [KeyError, OSError])  # what Python 3.10 raises, and 3.13
def test_somebody_without_a_name_in_the_system_has_the_number(monkeypatch, error):
    """As in a container that runs under a number of its own."""

    def unknown(uid):
        raise error(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert re.fullmatch(rf"uid {os.getuid()}@\S+ pid {os.getpid()}", whoami())
