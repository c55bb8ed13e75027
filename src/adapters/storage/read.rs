//! Opening one file for reading.

use rustix::{
    fs::{AtFlags, FileType, OFlags, StatxFlags},
    io::Errno,
};
use sha2::{Digest as _, Sha256};

use super::{Folder, open_beneath};
use crate::{
    domain::{path::SafePath, text::hex},
    ports::storage::OpenFile,
};

impl Folder {
    pub(super) fn try_read(&self, path: &SafePath) -> Result<OpenFile, Errno> {
        let handle = open_beneath(&self.files, path.as_bytes(), OFlags::RDONLY)?;
        let stat = rustix::fs::statx(&handle, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
            return Err(Errno::ISDIR);
        }
        let mut hash = Sha256::new();
        for number in [stat.stx_dev_major.into(), stat.stx_dev_minor.into(), stat.stx_ino, stat.stx_size] {
            hash.update(u64::to_be_bytes(number));
        }
        for time in [stat.stx_mtime, stat.stx_ctime] {
            hash.update(time.tv_sec.to_be_bytes());
            hash.update(time.tv_nsec.to_be_bytes());
        }
        let etag = format!("\"{}\"", hex(&hash.finalize()[..16]));
        Ok(OpenFile { file: handle.into(), size: stat.stx_size, modified_unix_s: stat.stx_mtime.tv_sec, etag })
    }
}
