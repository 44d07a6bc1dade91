//! One machine: building it, restoring it, standing still, going on.

use std::fs::File;
use std::io::BufReader;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use forkd_kvm::cpuid::{self, Level, Place};
use forkd_kvm::{CpuId, End, Hypervisor, KvmError, Vcpu, VcpuState, Vm};
use forkd_memory::changed::Pagemap;
use forkd_memory::extents::{Extent, read_table};
use forkd_memory::layout::Layout;
use forkd_memory::{GuestRam, PAGE_SIZE, map};
use forkd_protocol::control::{Boot, CpuModel, Exit, FdRole, Restore};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::devices::{Buses, DeviceFiles, Devices};
use crate::error::MonitorError;
use crate::handed::{FromStart, Handed};
use crate::jail::{Entrance, Rules};
use crate::snapshot::write_extents;
use crate::state::MachineState;
use crate::vcpus::Vcpus;
use crate::{acpi, boot, hot, layout, statefile};

const MIB: u64 = 1 << 20;
/// Fewest and most vCPUs.
const VCPUS: (u32, u32) = (1, 8);
/// Least and most RAM, MiB.
const MEMORY_MIB: (u32, u32) = (128, 16384);

/// What a monitor has before it is told anything.
#[derive(Debug)]
pub struct Host {
    hypervisor: Hypervisor,
    /// `/dev/urandom`, for the guest's entropy device.
    entropy: File,
    /// A directory of proc in which `self` is the process that looks.
    proc_dir: Arc<OwnedFd>,
    /// What binds the threads of a machine.
    rules: Rules,
    /// What this host can show a guest.
    supported: CpuId,
    /// Made while nobody waits for it.
    blank: Option<Blank>,
}

/// A machine without RAM: what all machines need and nothing of which says what they will be.
#[derive(Debug)]
struct Blank {
    // Dropped in this order.
    first: Vcpu,
    vm: Vm,
}

/// The files of the host that a monitor needs, opened before it is jailed.
#[derive(Debug)]
pub struct HostFiles {
    kvm: OwnedFd,
    entropy: File,
}

impl HostFiles {
    /// Opens them.
    ///
    /// # Errors
    /// KVM is not to be had.
    pub fn open() -> Result<Self, MonitorError> {
        let entropy = File::open("/dev/urandom").map_err(MonitorError::Events)?;
        Ok(Self { kvm: Hypervisor::open_device()?, entropy })
    }
}

impl Host {
    /// Gives up the rights of the one that started this process, makes what all machines need, and shuts the jail. KVM
    /// ties a machine to the memory of the process that makes it, so this is the monitor's own work.
    ///
    /// # Errors
    /// KVM refuses, or the jail cannot be shut.
    pub fn new(files: HostFiles, entrance: Entrance, listener: &UnixListener) -> Result<Self, MonitorError> {
        let HostFiles { kvm, entropy } = files;
        let proc_dir = entrance.proc_dir();
        // Before KVM: it may give a process that makes a machine a thread, and one with threads cannot do this.
        let inside = entrance.drop_rights()?;
        let hypervisor = Hypervisor::new(kvm)?;
        let supported = hypervisor.supported_cpuid()?;
        // Where it cannot be made now, whoever asks for a machine is told why.
        let blank = Blank::new(&hypervisor).ok();
        let rules = inside.shut(listener)?;
        Ok(Self { hypervisor, entropy, proc_dir, rules, supported, blank })
    }

    /// What binds its threads.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// A machine with `ram`, and its first vCPU. One after a machine that could not be made is made anew.
    fn machine(&mut self, ram: &GuestRam) -> Result<(Vm, Vcpu), MonitorError> {
        let Blank { vm, first } = self.blank.take().map_or_else(|| Blank::new(&self.hypervisor), Ok)?;
        vm.map_ram(ram)?;
        Ok((vm, first))
    }
}

impl Blank {
    fn new(hypervisor: &Hypervisor) -> Result<Self, KvmError> {
        let vm = hypervisor.create_vm()?;
        vm.create_irqchip()?;
        Ok(Self { first: vm.create_vcpu(0)?, vm })
    }
}

/// A machine, standing still when made.
#[derive(Debug)]
pub struct Machine {
    // Dropped in this order: vCPUs before the VM they belong to, both before the RAM that KVM was given.
    pub(crate) vcpus: Vcpus,
    pub(crate) vm: Vm,
    pub(crate) devices: Devices,
    pub(crate) ram: GuestRam,
    pub(crate) memory_mib: u32,
    pub(crate) proc_dir: Arc<OwnedFd>,
    /// The layers that RAM is mapped from; none for a machine that booted.
    pub(crate) below: Option<Below>,
    ended: EventFd,
    last_words: Option<File>,
    running: bool,
    /// Whether the event loop watches the devices.
    pub devices_watched: bool,
}

/// What lies below a restored machine's own pages.
#[derive(Debug)]
pub(crate) struct Below {
    pub(crate) base: File,
    pub(crate) upper: Vec<Extent>,
}

/// What a machine says of itself.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Pages with content of their own.
    pub changed_pages: u64,
    /// Console output that was not kept.
    pub console_dropped: u64,
    /// Malformed requests of the guest.
    pub device_errors: u64,
    /// Inode numbers of the files that its disks are written to.
    pub tops: Vec<u64>,
}

impl Machine {
    /// Builds a machine that will boot a kernel.
    ///
    /// # Errors
    /// A request out of bounds, a kernel that does not fit, KVM's refusal.
    pub fn boot(host: &mut Host, request: &Boot, mut handed: Handed) -> Result<Self, MonitorError> {
        check("the number of vCPUs", VCPUS, request.vcpus.into())?;
        check("the memory in MiB", MEMORY_MIB, request.memory_mib)?;
        let ram_layout = Layout::new(u64::from(request.memory_mib) * MIB);
        let ram = map::anonymous(&ram_layout)?;
        let mut kernel = handed.file(FdRole::Kernel)?;
        let mut ramdisk = handed.file(FdRole::Initrd)?;
        let entry = boot::load(&ram, &ram_layout, &mut kernel, &mut ramdisk, &request.cmdline)?;

        let (vm, first) = host.machine(&ram)?;
        let vcpus = boot_vcpus(host, &vm, first, request, entry)?;
        let files = DeviceFiles::take(&mut handed, clone(&host.entropy)?)?;
        let (devices, buses) = Devices::new(&vm, &ram, files)?;
        acpi::write(&ram, request.vcpus, devices.virtio_count())?;
        let parts = Parts { vm, vcpus, devices, buses, ram, memory_mib: request.memory_mib, below: None };
        Self::assemble(host, parts, handed)
    }

    /// Builds a machine from its saved state. Nothing of its memory is read or copied but its hot pages.
    ///
    /// # Errors
    /// State or layers that are damaged or do not fit, a host that cannot show the guest what it was shown.
    pub fn restore(host: &mut Host, request: &Restore, mut handed: Handed) -> Result<Self, MonitorError> {
        let state = statefile::read(&mut FromStart::new(&handed.file(FdRole::State)?))?;
        let MachineState { memory_mib, vm: vm_state, vcpus: vcpu_states, devices: device_states } = state;
        check("the number of vCPUs", VCPUS, u32::try_from(vcpu_states.len()).unwrap_or(u32::MAX))?;
        check("the memory in MiB", MEMORY_MIB, memory_mib)?;
        for state in &vcpu_states {
            cpuid::check_fit(&state.cpuid, &host.supported)?;
        }
        let ram_layout = Layout::new(u64::from(memory_mib) * MIB);
        let (ram, below) = map_layers(&ram_layout, &mut handed)?;
        let hot = hot::read(&ram_layout, &mut handed);
        let copied = hot::copy(&ram, &hot);
        ram.write_slice(&request.generation, GuestAddress(layout::GENERATION_PAGE))?;

        let (vm, vcpus) = restore_vcpus(host, &ram, &vcpu_states)?;
        vm.restore(&vm_state)?;
        if copied {
            hot::enter(&hot, &vcpus);
        }
        let files = DeviceFiles::take(&mut handed, clone(&host.entropy)?)?;
        let (devices, buses) = Devices::restore(&vm, &ram, device_states, files)?;
        devices.kick_all();
        announce_generation(&vm)?;
        let parts = Parts { vm, vcpus, devices, buses, ram, memory_mib, below: Some(below) };
        Self::assemble(host, parts, handed)
    }

    fn assemble(host: &Host, parts: Parts, mut handed: Handed) -> Result<Self, MonitorError> {
        let Parts { vm, vcpus, devices, buses, ram, memory_mib, below } = parts;
        let ended = EventFd::new(EFD_NONBLOCK).map_err(MonitorError::Events)?;
        let signal = ended.try_clone().map_err(MonitorError::Events)?;
        Ok(Self {
            vcpus: Vcpus::start(vcpus, &Arc::new(buses), signal, host.rules.of_vcpu())?,
            vm,
            devices,
            ram,
            memory_mib,
            proc_dir: Arc::clone(&host.proc_dir),
            below,
            ended,
            last_words: handed.take(FdRole::LastWords).map(File::from),
            running: false,
            devices_watched: false,
        })
    }

    /// Lets it run.
    ///
    /// # Errors
    /// A vCPU thread is gone.
    pub fn resume(&mut self) -> Result<(), MonitorError> {
        self.vcpus.run()?;
        self.running = true;
        Ok(())
    }

    /// Makes it stand still.
    ///
    /// # Errors
    /// A vCPU does not come out of the guest.
    pub fn pause(&mut self) -> Result<(), MonitorError> {
        self.vcpus.pause()?;
        self.running = false;
        Ok(())
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Why it cannot go on, once it cannot.
    pub fn end(&self) -> Option<End> {
        let reset = self.devices.reset_event().read().is_ok();
        self.vcpus.end().or(reset.then_some(End::Shutdown))
    }

    /// Does the devices' waiting work.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn serve_devices(&mut self) -> Result<(), MonitorError> {
        self.devices.serve()
    }

    /// Whether there is something left to do for a machine that already runs.
    pub fn has_idle_work(&self) -> bool {
        self.running && self.devices.has_exiting_doorbells()
    }

    /// Does one piece of it, which takes no longer than a grace period of the kernel.
    pub fn do_idle_work(&mut self) {
        self.devices.connect_next_doorbell(&self.vm);
    }

    /// Readable when a device has work.
    pub fn devices_fd(&self) -> RawFd {
        self.devices.epoll_fd()
    }

    /// Readable once a vCPU cannot go on.
    pub fn ended_fd(&self) -> RawFd {
        self.ended.as_raw_fd()
    }

    /// Readable once the guest has asked to be reset.
    pub fn reset_fd(&self) -> RawFd {
        self.devices.reset_event().as_raw_fd()
    }

    /// Writes the table of the pages that were changed so far.
    ///
    /// # Errors
    /// The output is missing, the page map cannot be read, or writing failed.
    pub fn write_changed(&self, mut handed: Handed) -> Result<(), MonitorError> {
        let out = handed.file(FdRole::ChangedOut)?;
        let pagemap = Pagemap::open(self.proc_dir.as_fd()).map_err(MonitorError::Pagemap)?;
        let changed = pagemap.changed(&self.ram).map_err(MonitorError::Pagemap)?;
        write_extents(&changed, out).map(drop)
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// The page map cannot be read.
    pub fn figures(&self) -> Result<Figures, MonitorError> {
        let mut changed_pages = 0;
        let pagemap = Pagemap::open(self.proc_dir.as_fd()).map_err(MonitorError::Pagemap)?;
        pagemap.each_changed(&self.ram, |_| changed_pages += 1).map_err(MonitorError::Pagemap)?;
        Ok(Figures {
            changed_pages,
            console_dropped: self.devices.console_dropped(),
            device_errors: self.devices.guest_faults(),
            tops: self.devices.top_inodes().map_err(MonitorError::Events)?,
        })
    }

    /// Writes how it ended where the engine looks for it. The machine is gone; there is nobody to tell of a failure.
    pub fn leave_last_words(&mut self, exit: &Exit) {
        if let (Some(file), Ok(words)) = (&mut self.last_words, serde_json::to_vec(exit)) {
            let _ = std::io::Write::write_all(file, &words);
        }
    }
}

struct Parts {
    vm: Vm,
    vcpus: Vec<Vcpu>,
    devices: Devices,
    buses: Buses,
    ram: GuestRam,
    memory_mib: u32,
    below: Option<Below>,
}

fn check(what: &'static str, (low, high): (u32, u32), given: u32) -> Result<(), MonitorError> {
    if (low..=high).contains(&given) { Ok(()) } else { Err(MonitorError::Bounds { what, low, high, given }) }
}

fn clone(file: &File) -> Result<File, MonitorError> {
    file.try_clone().map_err(MonitorError::Events)
}

fn boot_vcpus(
    host: &Host,
    vm: &Vm,
    first: Vcpu,
    request: &Boot,
    entry: u64,
) -> Result<Vec<Vcpu>, MonitorError> {
    let mut first = Some(first);
    let deadline = host.hypervisor.has_tsc_deadline();
    let mut vcpus = Vec::with_capacity(request.vcpus.into());
    for id in 0..request.vcpus {
        let mut vcpu = first.take().map_or_else(|| vm.create_vcpu(id), Ok)?;
        let place = Place { id, count: request.vcpus };
        vcpu.set_cpuid(&cpuid::describe(&host.supported, level(request.cpu), place, deadline)?)?;
        vcpu.set_firmware_registers()?;
        vcpu.reset_fpu()?;
        if id == 0 {
            boot::prepare_first_vcpu(&vcpu, entry)?;
        }
        vcpus.push(vcpu);
    }
    Ok(vcpus)
}

fn restore_vcpus(
    host: &mut Host,
    ram: &GuestRam,
    states: &[VcpuState],
) -> Result<(Vm, Vec<Vcpu>), MonitorError> {
    let (vm, first) = host.machine(ram)?;
    let mut first = Some(first);
    let mut vcpus = Vec::with_capacity(states.len());
    for (id, state) in (0u8..).zip(states) {
        let mut vcpu = first.take().map_or_else(|| vm.create_vcpu(id), Ok)?;
        vcpu.restore(state)?;
        vcpus.push(vcpu);
    }
    Ok((vm, vcpus))
}

fn level(model: CpuModel) -> Level {
    match model {
        CpuModel::Host => Level::Host,
        CpuModel::V2 => Level::V2,
        CpuModel::V3 => Level::V3,
    }
}

fn map_layers(ram_layout: &Layout, handed: &mut Handed) -> Result<(GuestRam, Below), MonitorError> {
    let base = handed.file(FdRole::MemoryBase)?;
    let ram = map::layered(ram_layout, clone(&base)?)?;
    let mut upper = Vec::new();
    if let Some(file) = handed.take(FdRole::MemoryUpper).map(File::from) {
        let table = handed.file(FdRole::MemoryUpperExtents)?;
        upper = read_table(&mut BufReader::new(FromStart::new(&table)), ram_layout.end() / PAGE_SIZE)?;
        map::overlay(&ram, &file, &upper)?;
    }
    Ok((ram, Below { base, upper }))
}

/// Rings the line that tells the guest's driver to look at its generation id. One edge is enough: the interrupt
/// controller keeps it until the guest takes it.
fn announce_generation(vm: &Vm) -> Result<(), MonitorError> {
    Ok(vm.pulse_irq(layout::GENERATION_GSI)?)
}
