//! Images, kernels, layers, snapshots: everything that lies on disk.
