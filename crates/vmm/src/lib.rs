//! The monitor process: builds or restores one machine, runs it, saves it.
