//! Opening one file for reading.

use std::fmt::Write as _;

use rustix::{
    fs::{AtFlags, FileType, OFlags, StatxFlags},
    io::Errno,
};
use sha2::{Digest as _, Sha256};

use super::{Conversation, OpenFile, SafePath, StoreError, open_beneath};

impl Conversation {
    /// Opens a plain file. Returns at once whatever stands there: a pipe nobody writes to, a link to a device.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], also where a file stands in a folder's place; [`StoreError::NotAFile`] for anything but a
    /// plain file, and for a path through a link.
    pub fn read(&self, path: &SafePath) -> Result<OpenFile, StoreError> {
        self.try_read(path).map_err(|errno| match errno {
            Errno::NOTDIR => StoreError::NotFound,
            errno => StoreError::new("open", errno),
        })
    }

    fn try_read(&self, path: &SafePath) -> Result<OpenFile, Errno> {
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
        let mut etag = String::from("\"");
        for byte in &hash.finalize()[..16] {
            // Writing to a String cannot fail.
            let _ = write!(etag, "{byte:02x}");
        }
        etag.push('"');
        Ok(OpenFile { file: handle.into(), size: stat.stx_size, modified_unix_s: stat.stx_mtime.tv_sec, etag })
    }
}
