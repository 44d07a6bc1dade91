//! What is stored: images, kernels, and disks that children share until they write.

use forkd_protocol::rest::{ImageInfo, KernelInfo, SnapshotInfo};

use crate::support::{Children, IMAGE, at_soak, bare, each, forkd, get, host_sh, store_root, together};

#[test]
fn children_write_to_disks_of_their_own() {
    let _world = together();
    let stored =
        || host_sh(&format!("cd {}; stat -c '%n %s %b %Y %Z' images/* layers/* | sort", store_root()));
    let info = || get("/v1/snapshots").parsed::<Vec<SnapshotInfo>>().into_iter().find(|s| s.tag == bare());
    let (n, mib) = at_soak("children and MiB each", (20, 50), (3, 4));
    let children = Children::fork(bare(), n);
    let (before, described) = (stored(), info());
    // The same name in each child and another content; read back from the device, not from the page cache.
    let script = format!(
        "cd /var; head -c {mib}M /dev/urandom >data; sha256sum data >sum; hostname >>/etc/motd; sync
         echo 3 >/proc/sys/vm/drop_caches; sha256sum --quiet -c sum && cut -c1-64 sum"
    );
    let mut sums = each(&children, |child| child.sh(&script));
    for (child, sum) in children.iter().zip(&sums) {
        assert_eq!(&child.sh("cd /var; sha256sum --quiet -c sum && cut -c1-64 sum"), sum);
        assert_eq!(child.sh("grep -h sb- /etc/motd"), child.id);
        assert_eq!(child.sh("dmesg | grep -Eci 'i/o error|ext4-fs error' || true"), "0");
    }
    sums.sort();
    sums.dedup();
    assert_eq!(sums.len(), n);
    let later = Children::fork(bare(), 1);
    assert_eq!(later[0].sh("ls /var/data 2>/dev/null; grep -h sb- /etc/motd || true"), "");
    assert_eq!(info(), described);
    // Other tests may store more meanwhile, but what was there is as it was.
    let after = stored();
    let gone: Vec<&str> = before
        .lines()
        .filter(|l| l.contains(&described.as_ref().unwrap().memory_hash))
        .filter(|l| !after.contains(l))
        .collect();
    assert_eq!(gone, Vec::<&str>::new());
}

#[test]
fn images_and_kernels_are_listed() {
    let _world = together();
    let images: Vec<ImageInfo> = forkd(&["--json", "image", "ls"]).ok().parsed();
    let image = images.iter().find(|i| i.name == IMAGE).unwrap();
    assert!(image.origin.contains("python3-numpy"), "{image:?}");
    assert!(image.physical_bytes < image.size_bytes && image.hash.len() == 64, "{image:?}");
    assert_eq!(get(&format!("/v1/images/{IMAGE}")).parsed::<ImageInfo>(), *image);
    let kernels: Vec<KernelInfo> = forkd(&["--json", "kernel", "ls"]).ok().parsed();
    assert!(!kernels.is_empty());
}
