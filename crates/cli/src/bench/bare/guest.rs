//! The smallest guest that shows it runs: a kernel, busybox, and a line for each line.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use forkd_store::cpio::CpioWriter;

use crate::error::CliError;
use crate::machine::tools;

/// What it prints when it is up.
pub(super) const READY: &str = "READY";
/// What it is asked.
pub(super) const PING: &str = "ping\n";
/// What it answers.
pub(super) const PONG: &str = "pong";
/// Its memory.
pub(super) const MEMORY_MIB: u32 = 512;
/// Its kernel's command line: the reference's, and what every guest of forkd is given besides.
pub(super) const CMDLINE: &str = "console=ttyS0 reboot=k panic=-1 quiet 8250.nr_uarts=1 pci=off \
                                  random.trust_cpu=on tsc=reliable no_timer_check";

/// Its first program. What it does for a ping is built into the shell: no process is started. Without an echo
/// the only thing on the line is the answer.
const INIT: &str = "#!/busybox sh
/busybox stty -echo
echo READY
while read -r word; do
    [ \"$word\" = ping ] && echo pong
done
# The first program must not end.
exec /busybox sleep 2147483647
";

/// Writes its ramdisk.
pub(super) fn write_ramdisk(path: &Path) -> Result<(), CliError> {
    let busybox = tools::static_busybox()?;
    let failed = |e: io::Error| CliError::io(format!("writing {}", path.display()), e);
    let mut program = File::open(&busybox).map_err(failed)?;
    let size = program.metadata().map_err(failed)?.len();
    let out = BufWriter::new(File::create(path).map_err(failed)?);
    archive(out, &mut program, size).and_then(|mut out| out.flush()).map_err(failed)
}

fn archive<W: Write>(out: W, busybox: &mut impl io::Read, size: u64) -> io::Result<W> {
    let mut archive = CpioWriter::new(out);
    for folder in ["dev", "proc"] {
        archive.folder(folder)?;
    }
    archive.file("init", 0o755, INIT.as_bytes())?;
    archive.file_from("busybox", 0o755, size, busybox)?;
    archive.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramdisk_holds_a_program_and_what_it_is_to_do() {
        let bytes = archive(Vec::new(), &mut &b"an executable"[..], 13).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("init\0") && text.contains("busybox\0") && text.contains("an executable"));
        assert!(INIT.contains(&format!("echo {READY}")) && INIT.contains(&format!("echo {PONG}")));
        assert!(archive(Vec::new(), &mut io::empty(), 1).is_err());
    }
}
