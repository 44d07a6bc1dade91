//! A root file system from a tar archive that somebody else made.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use super::ext4::make_ext4;
use super::unpack::unpack;
use super::{MadeImage, MakeError, Progress};

/// What to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarImage {
    /// Plain, or compressed with gzip, xz or zstd.
    pub tar: PathBuf,
    /// Size of the file system, and the most that the archive may unpack to; the file is sparse.
    pub size_bytes: u64,
    /// Where the result goes; existing is replaced.
    pub out: PathBuf,
}

/// Unpacks the archive, refusing what would leave its folder, and makes a file system of it. Needs root.
pub fn import_tar(image: &TarImage, progress: Progress<'_>) -> Result<MadeImage, MakeError> {
    let failed = |e: io::Error| MakeError::io("read", &image.tar, e);
    let archive = decompressed(File::open(&image.tar).map_err(failed)?).map_err(failed)?;
    super::need_root("importing an image")?;
    let work = super::work_folder(&super::folder_of(&image.out)?)?;
    let root = work.path().join("root");
    fs::create_dir(&root).map_err(|e| MakeError::io("create", &root, e))?;
    progress(&format!("unpacking {}", image.tar.display()));
    let unpacked = unpack(archive, &root, image.size_bytes)?;
    progress(&format!("{} entries, {} MiB", unpacked.entries, unpacked.bytes >> 20));
    let name = image.tar.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let origin = format!("tar {name}");
    make_ext4(&root, &image.out, image.size_bytes, &origin, progress)?;
    Ok(MadeImage { path: image.out.clone(), origin, cached: false })
}

/// Looks at the content, not at the name, for how it is compressed.
pub(super) fn decompressed(file: File) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::with_capacity(1 << 18, file);
    let start = file.fill_buf()?;
    Ok(if start.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(file))
    } else if start.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        Box::new(xz2::bufread::XzDecoder::new_multi_decoder(file))
    } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(zstd::stream::read::Decoder::with_buffer(file)?)
    } else {
        Box::new(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compression_is_seen_by_its_content() {
        let text = b"what an archive holds".repeat(100);
        let gzip = {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            io::Write::write_all(&mut encoder, &text).unwrap();
            encoder.finish().unwrap()
        };
        let mut xz = Vec::new();
        xz2::bufread::XzEncoder::new(&text[..], 1).read_to_end(&mut xz).unwrap();
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        for packed in [text.clone(), gzip, xz, zstd] {
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, &packed).unwrap();
            io::Seek::rewind(&mut file).unwrap();
            let mut back = Vec::new();
            decompressed(file).unwrap().read_to_end(&mut back).unwrap();
            assert_eq!(back, text);
        }
    }
}
