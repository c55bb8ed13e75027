//! Files of conversations on disk.
