//! Numbers: doubles in and out in JavaScript's spelling. Spec 10 §1.

use crate::limits::MAX_SAFE_INTEGER;

/// Digits of an integer that certainly lies within ±2^53.
pub(crate) const SAFE_DIGITS: usize = 15;

/// The double that a valid JSON number literal stands for; infinite if it overflows.
pub fn parse_double(literal: &[u8]) -> f64 {
    // A valid literal is ASCII and a subset of what the standard parser reads.
    std::str::from_utf8(literal)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Whether the literal has neither fraction nor exponent.
pub fn is_integer_literal(literal: &[u8]) -> bool {
    literal.iter().all(|b| b.is_ascii_digit() || *b == b'-')
}

/// The double as a safe integer: integral and within ±(2^53 − 1). Negative zero gives 0. Spec 20 §8.1.
#[inline]
pub fn safe_integer(value: f64) -> Option<i64> {
    const LIMIT: f64 = 9_007_199_254_740_991.0;
    if value.fract() == 0.0 && value.abs() <= LIMIT {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "integral and within 2^53, so exact"
        )]
        Some(value as i64)
    } else {
        None
    }
}

/// Whether the double is −0.
#[inline]
pub fn is_negative_zero(value: f64) -> bool {
    value == 0.0 && value.is_sign_negative()
}

/// Whether the integer lies within ±(2^53 − 1).
#[inline]
pub fn is_safe(value: i64) -> bool {
    (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(&value)
}

/// The double of an integer that is safe.
#[inline]
pub fn double(value: i64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "callers hold safe integers, which are exact"
    )]
    {
        value as f64
    }
}

/// Bytes of a safe integer.
#[inline]
pub(crate) fn integer_len(value: i64) -> usize {
    let digits = value.unsigned_abs().checked_ilog10().unwrap_or(0) as usize + 1;
    digits + usize::from(value < 0)
}

/// Whether a number literal is what [`write_double`] makes of its value.
pub(crate) fn is_spelled_double(literal: &[u8]) -> bool {
    let mut number = Vec::new();
    write_double(parse_double(literal), &mut number);
    literal == number
}

/// Appends a safe integer.
#[inline]
pub fn write_integer(value: i64, out: &mut Vec<u8>) {
    let rest = value.unsigned_abs();
    if value < 0 {
        out.push(b'-');
    }
    let start = out.len();
    let more_digits = rest.checked_ilog10().unwrap_or_default();
    // In place: digits that were written one by one are copied only when the last of them is stored.
    out.resize(start + 1 + more_digits as usize, b'0');
    put_digits(rest, out.get_mut(start..).unwrap_or_default());
}

/// Fills a place with the digits of a number, which are as many.
#[inline(always)]
pub(super) fn put_digits(mut rest: u64, mut place: &mut [u8]) {
    while let [before @ .., tens, ones] = place {
        [*tens, *ones] = PAIRS.get((rest % 100) as usize).copied().unwrap_or_default();
        rest /= 100;
        place = before;
    }
    if let [one] = place {
        *one = b'0' + rest.to_le_bytes()[0];
    }
}

/// Two digits each.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0u8;
    while number < 100 {
        pairs[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    pairs
};

/// Appends a double as JavaScript writes it in JSON: shortest digits, `0` for −0, `null` if not finite.
pub fn write_double(value: f64, out: &mut Vec<u8>) {
    if value.is_finite() {
        out.extend_from_slice(ryu_js::Buffer::new().format_finite(value).as_bytes());
    } else {
        out.extend_from_slice(b"null");
    }
}

/// A number for a message: as JavaScript spells it, but for those that JSON does not keep.
#[cold]
pub(crate) fn show_double(value: f64) -> String {
    if is_negative_zero(value) {
        return "-0".into();
    }
    if !value.is_finite() {
        return "beyond every number".into();
    }
    let mut out = Vec::new();
    write_double(value, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_spelled_as_javascript_does() {
        for (value, text) in [
            (-0.0, "0"),
            (1e21, "1e+21"),
            (1e-7, "1e-7"),
            (1e-6, "0.000001"),
            (5e-324, "5e-324"),
            (123_456_789_012_345_680_000.0, "123456789012345680000"),
            (f64::INFINITY, "null"),
            (0.1, "0.1"),
            (-1.5, "-1.5"),
        ] {
            let mut out = Vec::new();
            write_double(value, &mut out);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn integers_have_their_digits() {
        for value in (0..19).map(|digits| 10i64.pow(digits)) {
            for value in [value - 1, value, 1 - value, -value, value / 10 * 9 + 7] {
                let mut out = b"x".to_vec();
                write_integer(value, &mut out);
                assert_eq!(out, format!("x{value}").into_bytes());
            }
        }
    }

    #[test]
    fn safe_integers_end_at_two_to_the_53() {
        assert_eq!(safe_integer(9_007_199_254_740_991.0), Some(MAX_SAFE_INTEGER));
        assert_eq!(safe_integer(9_007_199_254_740_992.0), None);
        assert_eq!(safe_integer(1.5), None);
        assert_eq!(safe_integer(f64::INFINITY), None);
        assert_eq!(safe_integer(-0.0), Some(0));
    }

    #[test]
    fn an_overflowing_literal_is_infinite() {
        assert!(parse_double(b"1e400").is_infinite());
        assert!(is_negative_zero(parse_double(b"-0.0e5")));
    }
}
