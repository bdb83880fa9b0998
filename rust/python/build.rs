//! Tells the crate which interpreter it is built for: `cfg(Py_GIL_DISABLED)`.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
