//! PID 1 of the guest: processes, files, warm interpreters, identity.
