//! Which modules a kernel has to load for a list of wanted ones, and in which order.
//!
//! What is a module differs from kernel to kernel (Debian's 6.12 has virtio_pci built in, its 6.1 has
//! not), so nothing is listed by hand: `modules.dep`, `modules.softdep` and `modules.builtin` decide.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use super::MakeError;

/// The load order for a list of wanted modules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LoadOrder {
    /// Files below the modules folder, dependencies first.
    pub(super) files: Vec<String>,
    /// Wanted, but part of the kernel.
    pub(super) builtin: Vec<String>,
    /// Wanted, but unknown.
    pub(super) missing: Vec<String>,
}

/// What the module indexes of one kernel say.
#[derive(Debug, Default)]
pub(super) struct ModuleIndex {
    /// Module name to file.
    files: HashMap<String, String>,
    /// File to the files that have to be loaded before it.
    needs: HashMap<String, Vec<String>>,
    /// Module name to the names that should be loaded before it where they exist.
    softly_needs: HashMap<String, Vec<String>>,
    builtin: HashSet<String>,
}

impl ModuleIndex {
    /// Reads the indexes that `depmod` and the kernel package left in `lib/modules/<release>`.
    pub(super) fn read(folder: &Path) -> Result<Self, MakeError> {
        let read = |name: &str| fs::read_to_string(folder.join(name));
        let dep = read("modules.dep").map_err(|e| MakeError::io("read", folder.join("modules.dep"), e))?;
        Ok(Self::parse(
            &dep,
            &read("modules.softdep").unwrap_or_default(),
            &read("modules.builtin").unwrap_or_default(),
        ))
    }

    fn parse(dep: &str, softdep: &str, builtin: &str) -> Self {
        let mut index = Self::default();
        for (file, needs) in dep.lines().filter_map(|line| line.split_once(':')) {
            index.files.insert(module_name(file), file.to_owned());
            index.needs.insert(file.to_owned(), needs.split_whitespace().map(str::to_owned).collect());
        }
        for line in softdep.lines() {
            let mut words = line.split_whitespace().skip_while(|w| *w != "softdep").skip(1);
            let Some(module) = words.next() else { continue };
            let before = words.skip_while(|w| *w != "pre:").skip(1).take_while(|w| *w != "post:");
            index.softly_needs.entry(module_name(module)).or_default().extend(before.map(module_name));
        }
        index.builtin = builtin.lines().map(module_name).collect();
        index
    }

    /// Resolves the wanted names.
    pub(super) fn resolve(&self, wanted: &[&str]) -> LoadOrder {
        let mut order = LoadOrder::default();
        let mut seen = HashSet::new();
        for name in wanted {
            match self.files.get(&module_name(name)) {
                Some(file) => self.visit(file, &mut seen, &mut order.files),
                None if self.builtin.contains(&module_name(name)) => order.builtin.push((*name).to_owned()),
                None => order.missing.push((*name).to_owned()),
            }
        }
        order
    }

    /// Depth first; `seen` also ends cycles, which only a damaged index has.
    fn visit<'a>(&'a self, file: &'a str, seen: &mut HashSet<&'a str>, order: &mut Vec<String>) {
        if !seen.insert(file) {
            return;
        }
        let soft = self.softly_needs.get(&module_name(file)).into_iter().flatten();
        for before in soft.filter_map(|name| self.files.get(name)) {
            self.visit(before, seen, order);
        }
        // depmod lists the deepest dependency last.
        for before in self.needs.get(file).into_iter().flatten().rev() {
            self.visit(before, seen, order);
        }
        order.push(file.to_owned());
    }
}

/// `kernel/drivers/char/hw_random/virtio-rng.ko.xz` and `virtio_rng` are one module.
pub(super) fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).trim().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/net/vmw_vsock/vsock.ko.xz:
kernel/net/vmw_vsock/common.ko.xz: kernel/net/vmw_vsock/vsock.ko.xz
kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko.xz: kernel/net/vmw_vsock/common.ko.xz kernel/net/vmw_vsock/vsock.ko.xz
kernel/drivers/char/hw_random/virtio-rng.ko.xz:
kernel/fs/fancy.ko: kernel/lib/a.ko kernel/lib/b.ko
kernel/lib/a.ko: kernel/lib/b.ko kernel/fs/fancy.ko
kernel/lib/b.ko:
kernel/crypto/crc32c.ko.zst:
";

    #[test]
    fn dependencies_come_first_once_each_and_built_in_ones_not_at_all() {
        let soft = "# comment\nsoftdep virtio_rng pre: crc32c none post: fancy\n";
        let index =
            ModuleIndex::parse(DEP, soft, "kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio.ko\n");
        let order = index.resolve(&["ext4", "vmw_vsock_virtio_transport", "vsock", "virtio_rng", "vmgenid"]);
        assert_eq!(
            order.files,
            [
                "kernel/net/vmw_vsock/vsock.ko.xz",
                "kernel/net/vmw_vsock/common.ko.xz",
                "kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko.xz",
                "kernel/crypto/crc32c.ko.zst",
                "kernel/drivers/char/hw_random/virtio-rng.ko.xz",
            ]
        );
        assert_eq!((order.builtin, order.missing), (vec!["ext4".to_owned()], vec!["vmgenid".to_owned()]));
    }

    #[test]
    fn a_cycle_ends() {
        let order = ModuleIndex::parse(DEP, "", "").resolve(&["fancy"]);
        assert_eq!(order.files, ["kernel/lib/b.ko", "kernel/lib/a.ko", "kernel/fs/fancy.ko"]);
    }

    #[test]
    fn names_ignore_folder_ending_and_dashes() {
        for path in ["kernel/x/virtio-rng.ko.xz", "virtio_rng", "virtio-rng.ko"] {
            assert_eq!(module_name(path), "virtio_rng");
        }
    }
}
