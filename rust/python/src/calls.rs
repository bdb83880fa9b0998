//! Model calls of whole logs, without the GIL. Spec 80.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]
#![expect(
    clippy::fn_params_excessive_bools,
    clippy::too_many_arguments,
    reason = "these are keyword arguments, each with a default"
)]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dsh_codec_core::Limits;
use dsh_codec_core::bulk::{Buffers, Compression, FileScan, read_rows};
use dsh_codec_core::calls::{self as core, CallOptions, CallRows, TokenRows};
use dsh_codec_core::row::{Accept, ScanOptions, ScanResult};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::buffer::InputBytes;
use crate::errors::{KernelError, KernelResult};
use crate::header::header_tuple;
use crate::object::{KeyCache, with_scratch};
use crate::pybuild::{CollectorPause, TupleClass};
use crate::pystring;
use crate::row::{Generation, class, scan_options, scan_tuple, tuple_class};

/// Largest number up to which all integers are doubles.
const EXACT: i64 = 1 << 53;

struct Classes {
    call: TupleClass,
    timed: TupleClass,
    tool: TupleClass,
}

impl Classes {
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

        CLASSES.get_or_try_init(py, || {
            let module = py.import("dsh_codec._types")?;
            let named =
                |name: &str| -> PyResult<_> { TupleClass::new(module.getattr(name)?.cast::<PyType>()?) };
            Ok(Self {
                call: named("Call")?,
                timed: named("TimedCall")?,
                tool: named("ToolTime")?,
            })
        })
    }
}

/// Makes the Python values of calls.
struct Builder<'py, 'a> {
    py: Python<'py>,
    keys: &'a mut KeyCache,
    rows: &'a CallRows,
    options: CallOptions,
    session: Bound<'py, PyAny>,
    own_from: u64,
}

impl<'py> Builder<'py, '_> {
    fn none(&self) -> Bound<'py, PyAny> {
        self.py.None().into_bound(self.py)
    }

    fn number(&self, value: Option<i64>) -> Bound<'py, PyAny> {
        value.map_or_else(|| self.none(), |value| PyInt::new(self.py, value).into_any())
    }

    fn text(&mut self, text: Option<&[u8]>) -> PyResult<Bound<'py, PyAny>> {
        match text {
            Some(text) => Ok(self.keys.text(self.py, text)?.into_any()),
            None => Ok(self.none()),
        }
    }

    /// Tokens per second: the double next to the exact quotient.
    fn rate(&self, call: &core::Call) -> PyResult<Bound<'py, PyAny>> {
        let (Some(output), Some(generation)) = (call.tokens.output, call.times.generation) else {
            return Ok(self.none());
        };
        // A number of tokens is a safe integer, and its thousandfold fits.
        let output = output * 1000;
        if output <= EXACT && generation <= EXACT {
            #[expect(clippy::cast_precision_loss, reason = "both are exact, as was just asked")]
            return Ok(PyFloat::new(self.py, output as f64 / generation as f64).into_any());
        }
        PyInt::new(self.py, output).div(PyInt::new(self.py, generation))
    }

    fn tools(&self, call: &core::Call) -> PyResult<Bound<'py, PyAny>> {
        if !self.options.tools {
            return Ok(self.none());
        }
        let classes = Classes::get(self.py)?;
        let mut tools = Vec::new();
        for tool in self.rows.tools_of(call) {
            let call_id = pystring::to_python(self.py, &tool.call_id)?.into_any();
            tools.push(classes.tool.make(self.py, [call_id, self.number(tool.ms)])?);
        }
        Ok(PyTuple::new(self.py, tools)?.into_any())
    }

    fn gaps(&self, call: &core::Call) -> PyResult<Bound<'py, PyAny>> {
        if self.options.gaps {
            Ok(PyTuple::new(self.py, &call.gaps)?.into_any())
        } else {
            Ok(self.none())
        }
    }

    fn call(&mut self, call: &core::Call) -> PyResult<Bound<'py, PyAny>> {
        let classes = Classes::get(self.py)?;
        let core::Call { tokens, times, .. } = call;
        let attempt = call
            .attempt
            .map_or_else(|| self.none(), |attempt| PyInt::new(self.py, attempt).into_any());
        let is_own = call.seq >= self.own_from;
        let elements = [
            self.session.clone(),
            PyInt::new(self.py, call.seq).into_any(),
            self.number(call.place.turn),
            self.number(call.place.step),
            attempt,
            self.text(Some(call.outcome.as_str().as_bytes()))?,
            self.text(call.finish.as_deref())?,
            self.text(call.provider.as_deref())?,
            self.text(call.model.as_deref())?,
            self.text(call.served_model.as_deref())?,
            self.number(tokens.input),
            self.number(tokens.output),
            self.number(tokens.cache_read),
            self.number(tokens.cache_write),
            self.number(tokens.reasoning),
            self.number(tokens.total),
            self.number(tokens.recorded_total),
            self.number(times.start),
            self.number(times.first_token),
            self.number(times.last_token),
            self.number(times.end),
            self.number(times.ttft),
            self.number(times.generation),
            self.rate(call)?,
            self.tools(call)?,
            self.gaps(call)?,
            is_own.into_pyobject(self.py)?.to_owned().into_any(),
        ];
        let time = self.number(call.time);
        let made = classes.call.make(self.py, elements)?;
        classes.timed.make(self.py, [made, time])
    }
}

fn call_list<'py>(
    py: Python<'py>,
    rows: &mut CallRows,
    options: CallOptions,
    session: Bound<'py, PyAny>,
    own_from: u64,
) -> PyResult<Bound<'py, PyList>> {
    // Each call goes when its value is made: gaps are not in memory twice.
    let calls = rows.take_calls();
    let calls = with_scratch(|scratch| {
        // Nothing but allocation happens here, and a collection would find nothing to collect.
        let _pause = CollectorPause::new(py);
        let mut builder = Builder {
            py,
            keys: scratch.keys(),
            rows,
            options,
            session,
            own_from,
        };
        calls
            .into_iter()
            .map(|call| builder.call(&call))
            .collect::<PyResult<Vec<_>>>()
    })?;
    PyList::new(py, calls)
}

fn refuse_chunk_rows(generation: Option<Generation>) -> PyResult<()> {
    match generation {
        Some(generation) if generation.number() < 2 => Err(PyValueError::new_err(
            "generation is None or 2 to 4: attempts of 0 and 1 are groups of rows, which no scan finds",
        )),
        _ => Ok(()),
    }
}

/// Reads the calls of files, one after the other. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct CallReader {
    buffers: Mutex<Buffers>,
    scan: ScanOptions,
    calls: CallOptions,
}

#[pymethods]
impl CallReader {
    #[new]
    #[pyo3(signature = (*, times = true, tools = false, gaps = false, auxiliary = false, max_row_bytes = 268_435_456,
        max_frame_plain_bytes = 1_073_741_824, max_depth = 1024))]
    fn new(
        times: bool,
        tools: bool,
        gaps: bool,
        auxiliary: bool,
        max_row_bytes: u64,
        max_frame_plain_bytes: u64,
        max_depth: u32,
    ) -> PyResult<Self> {
        let limits = Limits {
            max_row_bytes,
            max_frame_plain_bytes,
            max_depth,
            ..Limits::default()
        };
        Ok(Self {
            buffers: Mutex::default(),
            scan: scan_options("recoverable", None, false, limits)?,
            calls: CallOptions {
                times,
                tools,
                gaps,
                auxiliary,
            },
        })
    }

    /// Read the calls of a log file. See the stub.
    #[pyo3(signature = (path, /, *, generation))]
    fn read_file<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        generation: Generation,
    ) -> KernelResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

        let mut rows = CallRows::new(self.calls);
        let keeps_records = self.calls.looks_into_records();
        let file = self.read(py, &path, generation, keeps_records, &mut rows)?;
        let header = header_tuple(py, &file.scan.header)?;
        let session = session_of(&header)?;
        let calls = call_list(
            py,
            &mut rows,
            self.calls,
            session,
            file.scan.inherited_event_count,
        )?;
        Ok(class(py, &CLASS, "CallScan")?.call1((header, compression_text(py, &file), calls))?)
    }

    /// Sum up the tokens of the own calls of a log file. See the stub.
    #[pyo3(signature = (path, /, *, generation))]
    fn sum_file<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        generation: Generation,
    ) -> KernelResult<Bound<'py, PyAny>> {
        static SCAN: PyOnceLock<TupleClass> = PyOnceLock::new();

        let (file, sums) = self.sum(py, &path, generation)?;
        let header = header_tuple(py, &file.scan.header)?;
        let compression = compression_text(py, &file).into_any();
        let fields = [header, compression, sums_tuple(py, &sums)?];
        Ok(tuple_class(py, &SCAN, "TokenScan")?.make(py, fields)?)
    }

    /// Sum up the tokens of the own calls of several log files. See the stub.
    #[pyo3(signature = (paths, /, *, generation, compression))]
    fn sum_files<'py>(
        &self,
        py: Python<'py>,
        paths: Vec<PathBuf>,
        generation: Generation,
        compression: &str,
    ) -> KernelResult<(Bound<'py, PyAny>, Vec<usize>)> {
        refuse_chunk_rows(Some(generation))?;
        let (mut total, mut left) = (core::TokenSums::default(), Vec::new());
        for (place, path) in paths.iter().enumerate() {
            py.check_signals()?;
            match self.sum(py, path, generation) {
                Ok((file, sums)) if compression_name(&file) == compression => total.merge(&sums),
                _ => left.push(place),
            }
        }
        Ok((sums_tuple(py, &total)?, left))
    }
}

impl CallReader {
    fn sum(
        &self,
        py: Python<'_>,
        path: &Path,
        generation: Generation,
    ) -> KernelResult<(FileScan, core::TokenSums)> {
        let mut rows = TokenRows::new(self.calls.auxiliary);
        let file = self.read(py, path, generation, false, &mut rows)?;
        let sums = rows.sum(file.scan.inherited_event_count);
        Ok((file, sums))
    }

    fn read(
        &self,
        py: Python<'_>,
        path: &Path,
        generation: Generation,
        keeps_records: bool,
        take: &mut (impl Accept + Send),
    ) -> KernelResult<FileScan> {
        refuse_chunk_rows(Some(generation))?;
        let scan = ScanOptions {
            generation: Some(generation.number()),
            keeps_records,
            ..self.scan
        };
        let file = py.detach(|| {
            let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            read_rows(path, scan, &mut buffers, take)
        });
        file.map_err(|error| KernelError::from(error).with_path(path))
    }
}

fn sums_tuple<'py>(py: Python<'py>, sums: &core::TokenSums) -> PyResult<Bound<'py, PyAny>> {
    static SUMS: PyOnceLock<TupleClass> = PyOnceLock::new();

    let core::TokenSums { calls, sums, known } = *sums;
    let [sums, known] = [PyTuple::new(py, sums)?, PyTuple::new(py, known)?];
    let fields = [
        PyInt::new(py, calls).into_any(),
        sums.into_any(),
        known.into_any(),
    ];
    tuple_class(py, &SUMS, "TokenSums")?.make(py, fields)
}

fn compression_name(file: &FileScan) -> &'static str {
    match file.compression {
        Compression::None => "none",
        Compression::Zstd => "zstd",
    }
}

fn compression_text<'py>(py: Python<'py>, file: &FileScan) -> Bound<'py, PyString> {
    PyString::intern(py, compression_name(file))
}

fn session_of<'py>(header: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    header.getattr("fields")?.get_item("id")
}

struct Scan {
    scanner: core::CallScanner,
    ended: Option<ScanResult>,
}

/// Scan of a log of generations 2 to 4 that collects its calls. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct CallScanner {
    scan: Mutex<Scan>,
    calls: CallOptions,
}

impl CallScanner {
    /// Called without the GIL, so that waiting for another thread blocks nobody.
    fn lock(&self) -> MutexGuard<'_, Scan> {
        self.scan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_attached(&self, py: Python<'_>) -> MutexGuard<'_, Scan> {
        self.scan
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Scan) -> T + Send) -> T {
        py.detach(|| work(&mut self.lock()))
    }
}

#[pymethods]
impl CallScanner {
    #[new]
    #[pyo3(signature = (*, times = true, tools = false, gaps = false, auxiliary = false, mode = "recoverable",
        generation = None, max_row_bytes = 268_435_456, max_depth = 1024))]
    fn new(
        times: bool,
        tools: bool,
        gaps: bool,
        auxiliary: bool,
        mode: &str,
        generation: Option<Generation>,
        max_row_bytes: u64,
        max_depth: u32,
    ) -> PyResult<Self> {
        refuse_chunk_rows(generation)?;
        let limits = Limits {
            max_row_bytes,
            max_depth,
            ..Limits::default()
        };
        let options = scan_options(mode, generation, false, limits)?;
        let calls = CallOptions {
            times,
            tools,
            gaps,
            auxiliary,
        };
        let scanner = core::CallScanner::new(options, calls);
        Ok(Self {
            scan: Mutex::new(Scan { scanner, ended: None }),
            calls,
        })
    }

    /// Accepted events.
    #[getter]
    fn event_count(&self, py: Python<'_>) -> u64 {
        self.with(py, |scan| scan.scanner.scanner().totals().event_count)
    }

    /// Plaintext bytes fed.
    #[getter]
    fn fed_bytes(&self, py: Python<'_>) -> u64 {
        self.with(py, |scan| scan.scanner.scanner().totals().fed_bytes)
    }

    /// Take the next bytes. See the stub.
    #[pyo3(signature = (data, /))]
    fn feed(&self, py: Python<'_>, data: InputBytes) -> KernelResult<()> {
        let bytes: &[u8] = &data;
        Ok(self.with(py, |scan| scan.scanner.feed(bytes))?)
    }

    /// Say that a complete frame ends here. See the stub.
    #[pyo3(signature = ())]
    fn end_frame(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, |scan| scan.scanner.end_frame())?)
    }

    /// Say that the last complete frame ended, before a torn one is fed. See the stub.
    #[pyo3(signature = ())]
    fn end_complete_frames(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, |scan| scan.scanner.end_complete_frames())?)
    }

    /// End the scan. See the stub.
    #[pyo3(signature = ())]
    fn finish<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let mut scan = self.lock_attached(py);
        let ended = scan.scanner.finish()?;
        let result = scan_tuple(py, &ended)?;
        scan.ended = Some(ended);
        Ok(result)
    }

    /// Return the calls, once the scan has ended; the next time there are none. See the stub.
    #[pyo3(signature = ())]
    fn take_calls<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyList>> {
        let mut scan = self.lock_attached(py);
        let Scan { scanner, ended } = &mut *scan;
        let Some(ended) = ended else {
            return Err(PyValueError::new_err("calls are known when the scan has ended: call finish").into());
        };
        let session = session_of(&header_tuple(py, &ended.header)?)?;
        let calls = call_list(
            py,
            scanner.rows_mut(),
            self.calls,
            session,
            ended.inherited_event_count,
        )?;
        Ok(calls)
    }
}
