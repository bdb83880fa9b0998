"""Prices of tokens, from a table that the caller brings. Spec: 80 §4 U8."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import os
    from decimal import Decimal

    from dsh_codec.calls import Call

__all__ = ["PriceTable"]

_BUCKETS: Final = ("input", "output", "cache_read", "cache_write")
_KEYS: Final = frozenset((*_BUCKETS, "provider", "model"))


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices per provider, model and kind of token. None is built in.

    Attributes:
        prices: For a provider (None: any) and a model, the price of `per_tokens` tokens of each
            kind that has one: `input`, `output`, `cache_read`, `cache_write`. Reasoning is
            part of the output.
        per_tokens: Tokens that a price is for.
        currency: What the prices are in; not interpreted.
    """

    prices: dict[tuple[str | None, str], dict[str, Decimal]]
    per_tokens: int = 1_000_000
    currency: str | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PriceTable:
        """Read a table from a TOML file, see `parse`.

        Raises:
            OSError: It cannot be read.
            ValueError: It is no price table.
        """
        return cls.parse(Path(path).read_text("utf-8"))

    @classmethod
    def parse(cls, text: str) -> PriceTable:
        r"""Read a table from TOML text.

        Args:
            text: `currency` and `per_tokens` (1,000,000 if absent), both optional, and an array
                `price` of tables with `model`, optional `provider`, and any of the kinds.

        Raises:
            ValueError: It is no TOML (`tomllib.TOMLDecodeError`) or no price table.

        Example:
            >>> table = PriceTable.parse('[[price]]\nmodel = "m"\ninput = 0.5')
            >>> table.prices
            {(None, 'm'): {'input': Decimal('0.5')}}
        """
        import tomllib
        from decimal import Decimal

        value = tomllib.loads(text, parse_float=Decimal)
        per_tokens = value.get("per_tokens", 1_000_000)
        if type(per_tokens) is not int or per_tokens < 1:
            raise ValueError(_fault("per_tokens has to be a whole number from 1"))
        currency = value.get("currency")
        if currency is not None and type(currency) is not str:
            raise ValueError(_fault("currency has to be a string"))
        entries = value.get("price", [])
        if type(entries) is not list:
            raise ValueError(_fault("prices are written as [[price]] tables"))
        unknown = set(value) - {"per_tokens", "currency", "price"}
        if unknown:
            raise ValueError(_fault(f"{min(unknown)!r} is no member of a price table"))
        prices: dict[tuple[str | None, str], dict[str, Decimal]] = {}
        for entry in entries:
            key, price = _entry(entry)
            if key in prices:
                raise ValueError(_fault(f"model {key[1]!r} has two prices"))
            prices[key] = price
        return cls(prices, per_tokens, currency)

    def cost(self, call: Call) -> Decimal | None:
        """Return what a call cost.

        Args:
            call: The call. The model that served it is looked up first, then the one asked
                for; of each, the price of its provider first, then that of any.

        Returns:
            The cost; None if no price is known for the model or for a kind of token of which
            the call used any, or if input or output tokens are unknown. Unknown cache tokens
            count as none (U4).
        """
        price = self._price_of(call)
        if price is None or call.input is None or call.output is None:
            return None
        cost: Decimal | int = 0
        for bucket in _BUCKETS:
            tokens = getattr(call, bucket)
            if not tokens:
                continue
            if bucket not in price:
                return None
            cost += price[bucket] * tokens
        from decimal import Decimal

        return Decimal(cost) / self.per_tokens

    def _price_of(self, call: Call) -> dict[str, Decimal] | None:
        for model in (call.served_model, call.model):
            if model is None:
                continue
            for provider in (call.provider, None):
                price = self.prices.get((provider, model))
                if price is not None:
                    return price
        return None


def require_table(value: object) -> None:
    """Refuse prices that are not in a table.

    Raises:
        TypeError: It is no `PriceTable`.
    """
    if not isinstance(value, PriceTable):
        message = (
            "prices is a PriceTable, made by PriceTable.load(path) or "
            f"PriceTable.parse(text), not {type(value).__name__}"
        )
        raise TypeError(message)


def _entry(entry: Any) -> tuple[tuple[str | None, str], dict[str, Decimal]]:
    if type(entry) is not dict or type(entry.get("model")) is not str:
        raise ValueError(_fault("every price needs a model"))
    unknown = set(entry) - _KEYS
    if unknown:
        raise ValueError(_fault(f"{min(unknown)!r} is no member of a price"))
    provider = entry.get("provider")
    if provider is not None and type(provider) is not str:
        raise ValueError(_fault("provider has to be a string"))
    from decimal import Decimal

    price = {}
    for bucket in _BUCKETS:
        if bucket not in entry:
            continue
        amount = entry[bucket]
        is_price = type(amount) in (int, Decimal) and Decimal(amount).is_finite()
        if not is_price or amount < 0:
            raise ValueError(_fault(f"{bucket} of {entry['model']!r} is no price"))
        price[bucket] = Decimal(amount)
    return (provider, entry["model"]), price


def _fault(what: str) -> str:
    return f"not a price table: {what}"
