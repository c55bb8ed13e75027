//! A scripted engine.
