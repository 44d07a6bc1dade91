//! The disk of a snapshot as its host sees it.

use forkd_protocol::rest::SnapshotInfoDetail;

use super::{get, host_sh, store_root};

/// Lays the layers over the image, as extent tables list them (16 bytes of header, then first block and count), and
/// has the file system checked: what its journal holds is done first, as a mount would, and then nothing may be wrong.
#[track_caller]
pub(crate) fn check_disk(tag: &str) {
    let detail: SnapshotInfoDetail = get(&format!("/v1/snapshots/{tag}/info")).parsed();
    let root = store_root();
    let layers: Vec<&str> = detail.disk_layers.iter().map(|layer| layer.hash.as_str()).collect();
    host_sh(&format!(
        r#"set -e
        disk=$(mktemp -p {root} check-XXXXXX); trap 'rm -f "$disk"' EXIT
        cp --sparse=always {root}/images/{image}.ext4 "$disk"; chmod 600 "$disk"
        for layer in {layers}; do
            od -An -v -t u8 -j 16 -w16 {root}/layers/$layer.extents | while read first blocks; do
                dd if={root}/layers/$layer of="$disk" bs=4096 skip=$first seek=$first count=$blocks \
                    conv=notrunc status=none
            done
        done
        e2fsck -p "$disk" || [ $? -eq 1 ]
        e2fsck -fn "$disk""#,
        image = detail.image_hash,
        layers = layers.join(" "),
    ));
}
