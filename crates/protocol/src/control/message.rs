//! What engine and monitor say to each other.

use serde::{Deserialize, Serialize};

/// Version of the control protocol; engines speak to monitors of every released version.
pub type ControlVersion = u32;

/// The version that these messages are.
pub const CONTROL_VERSION: ControlVersion = 4;

/// The first version in which a machine that runs on can be written as what it changed.
pub const BRANCH_VERSION: ControlVersion = 2;

/// The first version that thaws a workload by itself ([`Request::Guard`]), and goes on reading a frozen top through a
/// descriptor that cannot write ([`FdRole::DiskTopFrozen`]).
pub const GUARD_VERSION: ControlVersion = 3;

/// Version of the machine state that monitors write; see docs/snapshot-format.md.
pub const STATE_VERSION: u32 = 2;
/// The oldest version of a machine state that is still read. Version 1 had no balloon.
pub const OLDEST_STATE_VERSION: u32 = 1;

/// Environment variable that names the file by which a process of the monitor's program enters its cgroup (`cgroup.procs`).
pub const CGROUP_DOOR: &str = "FORKD_CGROUP_DOOR";

/// First bytes of a machine state; its version follows, little endian.
pub const STATE_MAGIC: [u8; 8] = *b"FKDSTATE";

/// Most pages (4 KiB) that a table of hot pages lists; a machine that changed more was not at its start any more.
pub const MAX_HOT_PAGES: u64 = 8192;

/// What a passed descriptor is for. `Request` messages list roles in the order of their descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FdRole {
    /// Kernel image (bzImage or ELF), read only.
    Kernel,
    /// Init ramdisk, read only.
    Initrd,
    /// Saved machine state, read only.
    State,
    /// The lowest memory layer: a sparse file whose offsets are guest-physical addresses.
    MemoryBase,
    /// The merged upper file of a view, same addressing.
    MemoryUpper,
    /// Extent table of the upper file.
    MemoryUpperExtents,
    /// Extent table of pages that every child changes at once, at most [`MAX_HOT_PAGES`] of them: they are made
    /// ready before it runs. A hint, which changes nothing but how long things take.
    Hot,
    /// A part of disk number `disk` (0 is the root disk).
    Disk {
        /// Index of the disk, in the order the guest sees them.
        disk: u8,
        /// Which file of it.
        part: DiskPart,
    },
    /// Listening Unix socket for connections into the guest (`CONNECT port`).
    VsockListener,
    /// Where the serial console is logged.
    Console,
    /// Where the serial console's input comes from, where anything types at it.
    ConsoleInput,
    /// A tap with headers of 12 bytes, that does not wait. Without one the guest's network device leads nowhere.
    Tap,
    /// Where the monitor writes how it ended.
    LastWords,
    /// Output: machine state.
    StateOut,
    /// Output: memory layer.
    MemoryOut,
    /// Output: extent table of the memory layer.
    MemoryExtentsOut,
    /// Output: extent table of the pages that a machine has changed.
    ChangedOut,
    /// Output: extent table of the frozen top of disk number `disk`.
    DiskExtentsOut {
        /// Index of the disk.
        disk: u8,
    },
    /// Output: a pipe into which a forked-off writer says how it ended ([`WriterEnd`] as one line of JSON).
    WriterStatus,
    /// The empty top that replaces the frozen one where the source runs on.
    DiskTopNew {
        /// Index of the disk.
        disk: u8,
    },
    /// The top that is frozen, open for reading only: the source goes on reading through it, and closes the descriptor
    /// that could write. From [`GUARD_VERSION`] on.
    DiskTopFrozen {
        /// Index of the disk.
        disk: u8,
    },
}

/// The files that make up one disk, from below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DiskPart {
    /// The image: a plain raw file, read only, shared by all.
    Base,
    /// Data of frozen layer `n`, counted from the base.
    Layer(u16),
    /// Extent table of frozen layer `n`.
    Extents(u16),
    /// The private, writable, initially empty top.
    Top,
}

/// Which processor features a guest is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuModel {
    /// Everything the host offers; such a snapshot stays with this kind of processor.
    Host,
    /// The x86-64-v2 level (SSE4.2, POPCNT, CMPXCHG16B).
    #[serde(rename = "x86-64-v2")]
    V2,
    /// The x86-64-v3 level (AVX2, BMI, FMA), or v2 where the host lacks it.
    #[default]
    #[serde(rename = "x86-64-v3")]
    V3,
}

/// Build a machine and start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// 1 to 8.
    pub vcpus: u8,
    /// 128 to 16384.
    pub memory_mib: u32,
    /// Kernel command line, passed on as it is: devices are found through ACPI.
    pub cmdline: String,
    /// Feature level.
    pub cpu: CpuModel,
    /// What each passed descriptor is.
    pub roles: Vec<FdRole>,
}

/// Build a machine from saved state. Everything else is in the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// What each passed descriptor is.
    pub roles: Vec<FdRole>,
    /// Run the vCPUs at once; otherwise the machine stays paused.
    pub run: bool,
    /// New VM generation id: 16 bytes that no other restore was given.
    pub generation: [u8; 16],
}

/// Which pages of memory are written, and who writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMode {
    /// Every page that is not zero, while the machine stands still: a layer that lies on nothing.
    #[default]
    Flat,
    /// The pages that the machine changed, while it stands still: a layer over those it was restored from. A listed
    /// page without data is zero.
    Changed,
    /// The same pages, written by a copy of the monitor while the machine runs on.
    Live,
}

/// Write the machine out. It must be running or paused; it is paused meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What each passed descriptor is.
    pub roles: Vec<FdRole>,
    /// Run on afterwards (then every disk needs a `DiskTopNew`).
    pub resume: bool,
    /// What of its memory. Monitors before [`BRANCH_VERSION`] know flat layers only.
    #[serde(default)]
    pub memory: MemoryMode,
    /// Only while the guard that [`Request::Guard`] set up has not thawed the workload. Afterwards it begins anew, or
    /// is gone where the machine stands still.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guarded: bool,
}

/// What the engine can ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who are you? Answered in every phase.
    Status,
    /// Legal once, first.
    Boot(Boot),
    /// Legal once, first.
    Restore(Restore),
    /// Stop the vCPUs and devices.
    Pause,
    /// Run on.
    Resume,
    /// Write state, memory and disks out.
    Snapshot(Snapshot),
    /// Write the table of changed pages into the one descriptor that comes along ([`FdRole::ChangedOut`]). The
    /// machine runs on: the table is of some moment meanwhile.
    Changed {
        /// What each passed descriptor is.
        roles: Vec<FdRole>,
    },
    /// The workload is about to be frozen: where this is not taken back ([`Request::Unguard`]) in time, the monitor has
    /// the agent thaw it, since whoever had it frozen may be gone. From [`GUARD_VERSION`] on.
    Guard {
        /// How long that may take, milliseconds.
        within_ms: u64,
    },
    /// The workload runs; there is nothing to guard.
    Unguard,
    /// The guest is who it is to be: from now on its network device passes frames. That of a machine that booted does so
    /// from the start. Told twice, or without a tap, no harm comes of it. From version 4 on.
    OpenNetwork,
    /// End the process. Always succeeds.
    Stop,
}

/// The phases of a monitor's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No machine yet.
    Waiting,
    /// vCPUs run.
    Running,
    /// vCPUs stand still.
    Paused,
    /// The guest ended; see [`Exit`].
    Ended,
}

/// How a guest ended; also the content of the last-words file (as JSON).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Exit {
    /// The guest rebooted or powered off.
    Shutdown,
    /// A vCPU could not go on (triple fault, KVM internal error, ...).
    Fault {
        /// What KVM reported.
        detail: String,
    },
    /// The engine asked for it.
    Stopped,
}

/// How the process of a monitor ended, as its reaper notes it in one line of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum ProcessEnd {
    /// By itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// By a signal; `SIGSYS` is its filter's.
    Killed {
        /// The signal's number.
        signal: i32,
    },
}

/// Answer to [`Request::Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Control protocol version the monitor speaks.
    pub version: ControlVersion,
    /// Version of the program.
    pub program: String,
    /// Where it is in its life.
    pub phase: Phase,
    /// Set when the phase is `Ended`.
    pub exit: Option<Exit>,
    /// Guest pages (4 KiB) this machine changed against its template; all present ones for a parent.
    pub changed_pages: u64,
    /// Console bytes that were dropped because the log is full.
    pub console_dropped: u64,
    /// Requests of the guest that a device refused as malformed.
    pub device_errors: u64,
    /// Which file each disk is written to, as inode number, in the order the guest sees the disks. Empty without a
    /// machine, and from monitors that do not tell.
    #[serde(default)]
    pub tops: Vec<u64>,
}

/// What a written layer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerStats {
    /// Entries of the extent table.
    pub extents: u64,
    /// Bytes of data (a multiple of 4096).
    pub bytes: u64,
}

/// Answer to [`Request::Snapshot`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshotted {
    /// From asking the vCPUs to stop until they run again (or until all is written).
    pub pause_us: u64,
    /// The memory layer; nothing yet where a writer is at work.
    pub memory: LayerStats,
    /// The frozen top of each disk.
    pub disks: Vec<LayerStats>,
    /// Process id of the writer, where one was forked off, as it is in the monitor's own pid namespace.
    #[serde(default)]
    pub writer: Option<u32>,
}

/// How a writer ended. One that says nothing was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum WriterEnd {
    /// All is written.
    Written {
        /// Entries of the extent table.
        extents: u64,
        /// Pages that the table lists.
        pages: u64,
    },
    /// Writing failed.
    Failed {
        /// The operating system's error number.
        errno: i32,
    },
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalClass {
    /// The request does not fit the phase or is malformed.
    Caller,
    /// The host cannot give the guest what it was shown.
    HostUnfit,
    /// The state or a layer is damaged or of another format.
    Corrupt,
    /// The host has no room (memory, disk, descriptors).
    Exhausted,
    /// Anything else.
    Internal,
}

/// A refused request; the machine is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For the machine.
    pub class: RefusalClass,
    /// For the person: what happened, to what, what to do.
    pub message: String,
}

/// What the monitor answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done {
        /// How long it took inside the monitor.
        micros: u64,
    },
    /// To `Status`.
    Status(Status),
    /// To `Snapshot`.
    Snapshotted(Snapshotted),
    /// Not done.
    Refused(Refusal),
}
