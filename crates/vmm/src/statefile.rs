//! The state file: everything of a machine but its memory and disks.
//!
//! ```text
//! offset  bytes
//!      0      8   magic "FKDSTATE"
//!      8      4   format version, little endian
//!     12     12   processor vendor, as CPUID names it
//!     24      4   vCPUs
//!     28      4   reserved, zero
//!     32      8   payload length
//!     40     32   BLAKE3 of the 40 bytes before and the payload
//!     72      …   payload: MachineState, postcard
//! ```
//!
//! A file of another version, cut short, or with a flipped bit is refused before anything is built from it. See
//! docs/snapshot-format.md.

use std::io::{self, Read, Write};

use forkd_protocol::control::{OLDEST_STATE_VERSION, STATE_MAGIC, STATE_VERSION};

use crate::state::MachineState;

/// First bytes of a state file.
pub const MAGIC: [u8; 8] = STATE_MAGIC;
/// Version of the format; raised whenever a field is added, removed or changes meaning.
pub const VERSION: u32 = STATE_VERSION;
/// The oldest version that is still read.
pub const OLDEST: u32 = OLDEST_STATE_VERSION;
/// What states of version 1 lack at their end: there was no balloon (`None`).
const NO_BALLOON: u8 = 0;
/// Most bytes a payload may have: eight vCPUs and all devices stay far below.
pub const MAX_PAYLOAD: u64 = 16 << 20;

const HASHED: usize = 40;
const HEADER: usize = 72;

/// A state file that was refused.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// Reading or writing failed, or the file is cut short.
    #[error("the state file could not be read or written whole")]
    Io(#[from] io::Error),
    /// It does not begin as a state file does.
    #[error("this is not a state file")]
    Foreign,
    /// It was written by another format version.
    #[error(
        "the state file has format version {0}, this monitor reads versions {OLDEST} to {VERSION}; make the snapshot again with `forkd snapshot refresh`"
    )]
    Version(u32),
    /// It claims an impossible length.
    #[error("the state file claims {0} bytes of state; it is damaged")]
    Length(u64),
    /// Its checksum does not fit its content.
    #[error("the state file is damaged: its checksum does not fit")]
    Checksum,
    /// The content is not a machine's state though the checksum fits.
    #[error("the state file cannot be understood")]
    Payload(#[from] postcard::Error),
}

/// Writes `state` to `out`.
///
/// # Errors
/// Those of the writer.
pub fn write(state: &MachineState, out: &mut impl Write) -> Result<(), StateFileError> {
    let payload = postcard::to_stdvec(state)?;
    let vcpus = u32::try_from(state.vcpus.len()).unwrap_or(u32::MAX);
    seal(state.vendor(), vcpus, &payload, out)?;
    Ok(())
}

/// Reads and checks a whole state file.
///
/// # Errors
/// Whatever is not exactly a state file of this version.
pub fn read(from: &mut impl Read) -> Result<MachineState, StateFileError> {
    let payload = unseal(from)?;
    let (state, rest) = postcard::take_from_bytes::<MachineState>(&payload)?;
    if rest.is_empty() { Ok(state) } else { Err(StateFileError::Length(payload.len() as u64)) }
}

fn seal(vendor: [u8; 12], vcpus: u32, payload: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut header = Vec::with_capacity(HEADER);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&vendor);
    header.extend_from_slice(&vcpus.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    let sum = checksum(&header, payload);
    header.extend_from_slice(&sum);
    out.write_all(&header)?;
    out.write_all(payload)
}

fn unseal(from: &mut impl Read) -> Result<Vec<u8>, StateFileError> {
    let mut header = [0u8; HEADER];
    from.read_exact(&mut header)?;
    let (hashed, sum) = header.split_at(HASHED);
    if !hashed.starts_with(&MAGIC) {
        return Err(StateFileError::Foreign);
    }
    let version = u32::from_le_bytes(field(hashed, 8));
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(StateFileError::Version(version));
    }
    let length = u64::from_le_bytes(field(hashed, 32));
    if length > MAX_PAYLOAD {
        return Err(StateFileError::Length(length));
    }
    let mut payload = vec![0; usize::try_from(length).map_err(|_| StateFileError::Length(length))?];
    from.read_exact(&mut payload)?;
    if from.read(&mut [0])? != 0 {
        return Err(StateFileError::Length(length));
    }
    if sum != checksum(hashed, &payload) {
        return Err(StateFileError::Checksum);
    }
    if version == 1 {
        payload.push(NO_BALLOON);
    }
    Ok(payload)
}

fn checksum(header: &[u8], payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(payload);
    *hasher.finalize().as_bytes()
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    if let Some(source) = bytes.get(at..at + N) {
        field.copy_from_slice(source);
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut bytes = Vec::new();
        seal(*b"AuthenticAMD", 2, &[7; 300], &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_sealed_is_unsealed() {
        assert_eq!(unseal(&mut file().as_slice()).unwrap(), [7; 300]);
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_refused() {
        let good = file();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(unseal(&mut bad.as_slice()).is_err(), "bit flipped at {at}");
            assert!(unseal(&mut &good[..at]).is_err(), "cut to {at}");
        }
        let mut longer = good;
        longer.push(0);
        assert!(unseal(&mut longer.as_slice()).is_err(), "one byte more");
    }

    #[test]
    fn another_version_says_what_to_do_and_a_lie_reserves_nothing() {
        let mut newer = file();
        newer[8] = u8::try_from(VERSION).unwrap() + 1;
        let refusal = unseal(&mut newer.as_slice()).unwrap_err();
        assert!(matches!(refusal, StateFileError::Version(_)));
        assert!(refusal.to_string().contains("forkd snapshot"));
        let mut lying = file();
        lying[32..40].fill(0xff);
        assert!(matches!(unseal(&mut lying.as_slice()), Err(StateFileError::Length(_))));
    }

    #[test]
    fn a_state_of_the_first_version_had_no_balloon() {
        let mut old = file();
        old[8] = 1;
        let sum = checksum(&old[..HASHED], &[7; 300]);
        old[HASHED..HEADER].copy_from_slice(&sum);
        let payload = unseal(&mut old.as_slice()).unwrap();
        assert_eq!((payload.len(), payload[300]), (301, NO_BALLOON));
    }

    #[test]
    fn noise_behind_a_good_checksum_is_refused() {
        assert!(matches!(
            read(&mut file().as_slice()),
            Err(StateFileError::Payload(_) | StateFileError::Length(_))
        ));
    }
}
