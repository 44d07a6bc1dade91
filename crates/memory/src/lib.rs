//! Guest RAM: layout, layers mapped copy-on-write, which pages changed.
