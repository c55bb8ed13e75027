//! surfaces
