//! What a sandbox needs from Linux: cgroup, process handle.
