//! Classification with SSE2, which every x86-64 has, and with AVX2 and AVX-512 where they were found.

use super::{Blocks, ESCAPE_LETTERS, EscapeMasks, IntegerMasks, LongMasks, ShortMasks, StringMasks, Task};
use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8,
    _mm_or_si128, _mm_set1_epi8, _mm_sub_epi8, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8,
    _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
    _mm256_setr_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_sub_epi8,
    _mm512_and_si512, _mm512_cmpeq_epi8_mask, _mm512_cmple_epu8_mask, _mm512_loadu_si512,
    _mm512_movepi8_mask, _mm512_set1_epi8, _mm512_set4_epi32, _mm512_shuffle_epi8, _mm512_srli_epi16,
    _mm512_sub_epi8, _mm512_test_epi8_mask,
};
use core::sync::atomic::{AtomicU8, Ordering};

/// What [`level`] says; below them is SSE2, which every processor has.
pub(super) const AVX2: u8 = 2;
pub(super) const AVX512: u8 = 3;

/// The best instructions that this processor has, looked up once: a short row asks several times.
#[inline]
pub(super) fn level() -> u8 {
    // 0: not looked up yet.
    static LEVEL: AtomicU8 = AtomicU8::new(0);

    match LEVEL.load(Ordering::Relaxed) {
        0 => {
            let level = find_level();
            LEVEL.store(level, Ordering::Relaxed);
            level
        }
        level => level,
    }
}

#[cold]
fn find_level() -> u8 {
    if has_avx512() {
        AVX512
    } else if has_avx2() {
        AVX2
    } else {
        1
    }
}

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") && has_avx2()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn with_avx512<T: Task>(task: T) -> T::Output {
    task.run(Avx512(()))
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn with_avx2<T: Task>(task: T) -> T::Output {
    task.run(Avx2(()))
}

/// SSE2 is part of the base target.
#[derive(Clone, Copy)]
pub(super) struct Sse2;

/// Made by [`with_avx512`] only, so whoever holds one runs on a processor that has it.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Made by [`with_avx2`] only, so whoever holds one runs on a processor that has it.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

#[inline]
#[target_feature(enable = "sse2")]
fn bits16(v: __m128i) -> u32 {
    _mm_movemask_epi8(v).cast_unsigned()
}

#[inline]
#[target_feature(enable = "sse2")]
fn load16(block: &[u8], at: usize) -> __m128i {
    match block.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
        // SAFETY: the reference is to 16 readable bytes, and the load asks for no alignment.
        Some(chunk) => unsafe { _mm_loadu_si128(chunk.as_ptr().cast()) },
        None => _mm_set1_epi8(0),
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn equal16(v: __m128i, byte: u8) -> __m128i {
    _mm_cmpeq_epi8(v, _mm_set1_epi8(byte.cast_signed()))
}

#[inline]
#[target_feature(enable = "sse2")]
fn at_most16(v: __m128i, limit: u8) -> __m128i {
    _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(limit.cast_signed())), v)
}

#[inline]
#[target_feature(enable = "sse2")]
fn sse2_strings(block: &[u8; 64]) -> StringMasks {
    let mut masks = StringMasks {
        quote: 0,
        backslash: 0,
        control: 0,
        comma: 0,
        high: false,
    };
    for at in [0, 16, 32, 48] {
        let v = load16(block, at);
        masks.quote |= u64::from(bits16(equal16(v, b'"'))) << at;
        masks.backslash |= u64::from(bits16(equal16(v, b'\\'))) << at;
        masks.control |= u64::from(bits16(at_most16(v, 0x1f))) << at;
        masks.comma |= u64::from(bits16(equal16(v, b','))) << at;
        masks.high |= bits16(v) != 0;
    }
    masks
}

#[inline]
#[target_feature(enable = "sse2")]
fn sse2_integers(block: &[u8; 64]) -> IntegerMasks {
    let mut masks = IntegerMasks {
        digit: 0,
        zero: 0,
        comma: 0,
        minus: 0,
    };
    for at in [0, 16, 32, 48] {
        let v = load16(block, at);
        let digit = at_most16(_mm_sub_epi8(v, _mm_set1_epi8(b'0'.cast_signed())), 9);
        masks.digit |= u64::from(bits16(digit)) << at;
        masks.zero |= u64::from(bits16(equal16(v, b'0'))) << at;
        masks.comma |= u64::from(bits16(equal16(v, b','))) << at;
        masks.minus |= u64::from(bits16(equal16(v, b'-'))) << at;
    }
    masks
}

#[inline]
#[target_feature(enable = "sse2")]
fn sse2_short(block: &[u8; 32]) -> ShortMasks {
    let mut masks = ShortMasks { special: 0, high: 0 };
    for at in [0, 16] {
        let v = load16(block, at);
        let special = _mm_or_si128(
            _mm_or_si128(equal16(v, b'"'), equal16(v, b'\\')),
            at_most16(v, 0x1f),
        );
        masks.special |= bits16(special) << at;
        masks.high |= bits16(v) << at;
    }
    masks
}

#[inline]
#[target_feature(enable = "sse2")]
fn sse2_long(block: &[u8; 64]) -> LongMasks {
    let mut masks = LongMasks {
        special: 0,
        high: false,
    };
    for at in [0, 16, 32, 48] {
        let v = load16(block, at);
        let special = _mm_or_si128(
            _mm_or_si128(equal16(v, b'"'), equal16(v, b'\\')),
            at_most16(v, 0x1f),
        );
        masks.special |= u64::from(bits16(special)) << at;
        masks.high |= bits16(v) != 0;
    }
    masks
}

#[inline]
#[target_feature(enable = "sse2")]
fn sse2_escapes(block: &[u8; 64]) -> EscapeMasks {
    let mut masks = EscapeMasks {
        letter: 0,
        unicode: 0,
        slash: 0,
    };
    for at in [0, 16, 32, 48] {
        let v = load16(block, at);
        let unicode = equal16(v, b'u');
        let letter = ESCAPE_LETTERS
            .iter()
            .fold(unicode, |found, &letter| _mm_or_si128(found, equal16(v, letter)));
        masks.unicode |= u64::from(bits16(unicode)) << at;
        masks.slash |= u64::from(bits16(equal16(v, b'/'))) << at;
        masks.letter |= u64::from(bits16(letter)) << at;
    }
    masks
}

impl Blocks for Sse2 {
    #[inline(always)]
    fn strings(self, block: &[u8; 64]) -> StringMasks {
        // SAFETY: the feature is part of every x86-64.
        unsafe { sse2_strings(block) }
    }

    #[inline(always)]
    fn integers(self, block: &[u8; 64]) -> IntegerMasks {
        // SAFETY: the feature is part of every x86-64.
        unsafe { sse2_integers(block) }
    }

    #[inline(always)]
    fn short(self, block: &[u8; 32]) -> ShortMasks {
        // SAFETY: the feature is part of every x86-64.
        unsafe { sse2_short(block) }
    }

    #[inline(always)]
    fn long(self, block: &[u8; 64]) -> LongMasks {
        // SAFETY: the feature is part of every x86-64.
        unsafe { sse2_long(block) }
    }

    #[inline(always)]
    fn escapes(self, block: &[u8; 64]) -> EscapeMasks {
        // SAFETY: the feature is part of every x86-64.
        unsafe { sse2_escapes(block) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load32(block: &[u8], at: usize) -> __m256i {
    match block.get(at..).and_then(|rest| rest.first_chunk::<32>()) {
        // SAFETY: the reference is to 32 readable bytes, and the load asks for no alignment.
        Some(chunk) => unsafe { _mm256_loadu_si256(chunk.as_ptr().cast()) },
        None => _mm256_set1_epi8(0),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn bits32(v: __m256i) -> u32 {
    _mm256_movemask_epi8(v).cast_unsigned()
}

#[inline]
#[target_feature(enable = "avx2")]
fn equal32(v: __m256i, byte: u8) -> __m256i {
    _mm256_cmpeq_epi8(v, _mm256_set1_epi8(byte.cast_signed()))
}

#[inline]
#[target_feature(enable = "avx2")]
fn at_most32(v: __m256i, limit: u8) -> __m256i {
    _mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(limit.cast_signed())), v)
}

#[inline]
#[target_feature(enable = "avx2")]
fn join(low: __m256i, high: __m256i) -> u64 {
    u64::from(bits32(low)) | u64::from(bits32(high)) << 32
}

#[inline]
#[target_feature(enable = "avx2")]
fn avx2_strings(block: &[u8; 64]) -> StringMasks {
    let (a, b) = (load32(block, 0), load32(block, 32));
    StringMasks {
        quote: join(equal32(a, b'"'), equal32(b, b'"')),
        backslash: join(equal32(a, b'\\'), equal32(b, b'\\')),
        control: join(at_most32(a, 0x1f), at_most32(b, 0x1f)),
        comma: join(equal32(a, b','), equal32(b, b',')),
        high: bits32(_mm256_or_si256(a, b)) != 0,
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn avx2_integers(block: &[u8; 64]) -> IntegerMasks {
    let (a, b) = (load32(block, 0), load32(block, 32));
    let nought = _mm256_set1_epi8(b'0'.cast_signed());
    IntegerMasks {
        digit: join(
            at_most32(_mm256_sub_epi8(a, nought), 9),
            at_most32(_mm256_sub_epi8(b, nought), 9),
        ),
        zero: join(_mm256_cmpeq_epi8(a, nought), _mm256_cmpeq_epi8(b, nought)),
        comma: join(equal32(a, b','), equal32(b, b',')),
        minus: join(equal32(a, b'-'), equal32(b, b'-')),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn avx2_short(block: &[u8; 32]) -> ShortMasks {
    let v = load32(block, 0);
    ShortMasks {
        special: bits32(special32(v)),
        high: bits32(v),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn special32(v: __m256i) -> __m256i {
    _mm256_or_si256(
        _mm256_or_si256(equal32(v, b'"'), equal32(v, b'\\')),
        at_most32(v, 0x1f),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn avx2_long(block: &[u8; 64]) -> LongMasks {
    let (a, b) = (load32(block, 0), load32(block, 32));
    LongMasks {
        special: join(special32(a), special32(b)),
        high: bits32(_mm256_or_si256(a, b)) != 0,
    }
}

/// By its low and its high four bits, a byte is looked up in two tables; it is a letter of an escape if both
/// results share a bit: 1 for bytes 0x2X, 2 for 0x5X, 4 for 0x6X, 8 for 0x7X.
#[inline]
#[target_feature(enable = "avx2")]
fn letters32(v: __m256i) -> __m256i {
    let low = _mm256_setr_epi8(
        0,
        0,
        1 | 4 | 8,
        0,
        8,
        8,
        4,
        0,
        0,
        0,
        0,
        0,
        2,
        0,
        4,
        1,
        0,
        0,
        1 | 4 | 8,
        0,
        8,
        8,
        4,
        0,
        0,
        0,
        0,
        0,
        2,
        0,
        4,
        1,
    );
    let high = _mm256_setr_epi8(
        0, 0, 1, 0, 0, 2, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0,
    );
    // Bytes from 0x80 give 0 in the first look-up.
    let by_low = _mm256_shuffle_epi8(low, v);
    let top = _mm256_and_si256(_mm256_srli_epi16::<4>(v), _mm256_set1_epi8(0x0f));
    let shared = _mm256_and_si256(by_low, _mm256_shuffle_epi8(high, top));
    _mm256_cmpgt_epi8(shared, _mm256_setzero_si256())
}

#[inline]
#[target_feature(enable = "avx2")]
fn avx2_escapes(block: &[u8; 64]) -> EscapeMasks {
    let (a, b) = (load32(block, 0), load32(block, 32));
    EscapeMasks {
        letter: join(letters32(a), letters32(b)),
        unicode: join(equal32(a, b'u'), equal32(b, b'u')),
        slash: join(equal32(a, b'/'), equal32(b, b'/')),
    }
}

impl Blocks for Avx2 {
    #[inline(always)]
    fn strings(self, block: &[u8; 64]) -> StringMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx2_strings(block) }
    }

    #[inline(always)]
    fn integers(self, block: &[u8; 64]) -> IntegerMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx2_integers(block) }
    }

    #[inline(always)]
    fn short(self, block: &[u8; 32]) -> ShortMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx2_short(block) }
    }

    #[inline(always)]
    fn long(self, block: &[u8; 64]) -> LongMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx2_long(block) }
    }

    #[inline(always)]
    fn escapes(self, block: &[u8; 64]) -> EscapeMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx2_escapes(block) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load64(block: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to 64 readable bytes, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn equal64(v: __m512i, byte: u8) -> u64 {
    _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(byte.cast_signed()))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn at_most64(v: __m512i, limit: u8) -> u64 {
    _mm512_cmple_epu8_mask(v, _mm512_set1_epi8(limit.cast_signed()))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn avx512_strings(block: &[u8; 64]) -> StringMasks {
    let v = load64(block);
    StringMasks {
        quote: equal64(v, b'"'),
        backslash: equal64(v, b'\\'),
        control: at_most64(v, 0x1f),
        comma: equal64(v, b','),
        high: _mm512_movepi8_mask(v) != 0,
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn avx512_integers(block: &[u8; 64]) -> IntegerMasks {
    let v = load64(block);
    IntegerMasks {
        digit: at_most64(_mm512_sub_epi8(v, _mm512_set1_epi8(b'0'.cast_signed())), 9),
        zero: equal64(v, b'0'),
        comma: equal64(v, b','),
        minus: equal64(v, b'-'),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn avx512_long(block: &[u8; 64]) -> LongMasks {
    let v = load64(block);
    LongMasks {
        special: equal64(v, b'"') | equal64(v, b'\\') | at_most64(v, 0x1f),
        high: _mm512_movepi8_mask(v) != 0,
    }
}

/// See [`letters32`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn avx512_escapes(block: &[u8; 64]) -> EscapeMasks {
    let v = load64(block);
    // The tables of `letters32`, four bytes in an element, four times.
    let low = _mm512_set4_epi32(0x0104_0002, 0, 0x0004_0808, 0x000d_0000);
    let high = _mm512_set4_epi32(0, 0, 0x0804_0200, 0x0001_0000);
    let by_low = _mm512_shuffle_epi8(low, v);
    let top = _mm512_and_si512(_mm512_srli_epi16::<4>(v), _mm512_set1_epi8(0x0f));
    EscapeMasks {
        letter: _mm512_test_epi8_mask(by_low, _mm512_shuffle_epi8(high, top)),
        unicode: equal64(v, b'u'),
        slash: equal64(v, b'/'),
    }
}

impl Blocks for Avx512 {
    #[inline(always)]
    fn strings(self, block: &[u8; 64]) -> StringMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx512_strings(block) }
    }

    #[inline(always)]
    fn integers(self, block: &[u8; 64]) -> IntegerMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx512_integers(block) }
    }

    #[inline(always)]
    fn short(self, block: &[u8; 32]) -> ShortMasks {
        // SAFETY: a value of this type exists only where AVX2 was found, too.
        unsafe { avx2_short(block) }
    }

    #[inline(always)]
    fn long(self, block: &[u8; 64]) -> LongMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx512_long(block) }
    }

    #[inline(always)]
    fn escapes(self, block: &[u8; 64]) -> EscapeMasks {
        // SAFETY: a value of this type exists only where the feature was found.
        unsafe { avx512_escapes(block) }
    }
}
