//! The descriptors that came with a request, each for what it is.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use forkd_protocol::control::{DiskPart, FdRole};

/// Descriptors that do not fit the request.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HandedError {
    /// As many roles as descriptors are needed.
    #[error("{roles} roles were named but {descriptors} descriptors came with them")]
    Count {
        /// Named.
        roles: usize,
        /// Came.
        descriptors: usize,
    },
    /// One role twice.
    #[error("{0:?} was handed in twice")]
    Twice(FdRole),
    /// One is missing.
    #[error("{0:?} was not handed in")]
    Missing(FdRole),
}

/// Descriptors by role; each can be taken once. What is not taken is closed.
#[derive(Debug)]
pub struct Handed {
    by_role: HashMap<FdRole, OwnedFd>,
}

/// Reads a file from its beginning, whatever its position: descriptors of one snapshot are shared by all of its
/// children, and so is their position.
#[derive(Debug)]
pub struct FromStart<'a> {
    file: &'a File,
    offset: u64,
}

impl<'a> FromStart<'a> {
    /// A reader of `file`.
    pub fn new(file: &'a File) -> Self {
        Self { file, offset: 0 }
    }
}

impl Read for FromStart<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buf, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The files of one disk.
#[derive(Debug)]
pub struct DiskFiles {
    /// The image.
    pub base: File,
    /// Data and extent table of each frozen layer, from below.
    pub layers: Vec<(File, File)>,
    /// The private top.
    pub top: File,
}

impl Handed {
    /// Pairs roles with descriptors.
    ///
    /// # Errors
    /// Their numbers differ, or a role comes twice.
    pub fn new(roles: &[FdRole], descriptors: Vec<OwnedFd>) -> Result<Self, HandedError> {
        if roles.len() != descriptors.len() {
            return Err(HandedError::Count { roles: roles.len(), descriptors: descriptors.len() });
        }
        let mut by_role = HashMap::with_capacity(roles.len());
        for (role, descriptor) in roles.iter().zip(descriptors) {
            if by_role.insert(*role, descriptor).is_some() {
                return Err(HandedError::Twice(*role));
            }
        }
        Ok(Self { by_role })
    }

    /// Takes the descriptor for `role`, if there is one.
    pub fn take(&mut self, role: FdRole) -> Option<OwnedFd> {
        self.by_role.remove(&role)
    }

    /// Takes the file for `role`.
    ///
    /// # Errors
    /// It was not handed in.
    pub fn file(&mut self, role: FdRole) -> Result<File, HandedError> {
        self.take(role).map(File::from).ok_or(HandedError::Missing(role))
    }

    /// Takes the files of all disks, in the order the guest sees them.
    ///
    /// # Errors
    /// A part is missing.
    pub fn disks(&mut self) -> Result<Vec<DiskFiles>, HandedError> {
        let mut disks = Vec::new();
        for disk in 0..u8::MAX {
            let role = |part| FdRole::Disk { disk, part };
            let Some(base) = self.take(role(DiskPart::Base)) else { break };
            let mut layers = Vec::new();
            for number in 0..u16::MAX {
                let Some(data) = self.take(role(DiskPart::Layer(number))) else { break };
                layers.push((data.into(), self.file(role(DiskPart::Extents(number)))?));
            }
            disks.push(DiskFiles { base: base.into(), layers, top: self.file(role(DiskPart::Top))? });
        }
        Ok(disks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn roles_and_descriptors_must_match_one_to_one() {
        let count = Handed::new(&[FdRole::State], vec![]).unwrap_err();
        assert_eq!(count, HandedError::Count { roles: 1, descriptors: 0 });
        let twice = Handed::new(&[FdRole::State, FdRole::State], vec![null(), null()]).unwrap_err();
        assert_eq!(twice, HandedError::Twice(FdRole::State));
        let mut handed = Handed::new(&[FdRole::State], vec![null()]).unwrap();
        handed.file(FdRole::State).unwrap();
        assert_eq!(handed.file(FdRole::State).unwrap_err(), HandedError::Missing(FdRole::State));
    }

    #[test]
    fn a_disk_is_whole_or_refused() {
        let role = |part| FdRole::Disk { disk: 0, part };
        let mut parts = vec![
            role(DiskPart::Base),
            role(DiskPart::Layer(0)),
            role(DiskPart::Extents(0)),
            role(DiskPart::Top),
        ];
        let mut whole = Handed::new(&parts, (0..4).map(|_| null()).collect()).unwrap();
        assert_eq!(whole.disks().unwrap()[0].layers.len(), 1);
        parts.remove(2);
        let mut cut = Handed::new(&parts, (0..3).map(|_| null()).collect()).unwrap();
        assert_eq!(cut.disks().unwrap_err(), HandedError::Missing(role(DiskPart::Extents(0))));
    }
}
