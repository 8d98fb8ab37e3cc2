"""Codecs: how values are encoded. A codec says how many bytes an array takes on the wire, and writes and reads them.

    codec = codec_of("float16")
    payload = np.empty(codec.nbytes(len(values), values.dtype), np.uint8)
    codec.encode(values, payload)
    codec.decode(payload, out)

A codec that rounds is never used in shared memory, where readers see the values themselves. Gradient compression has
two parts: `Residuals` quantises a worker's gradients and keeps the remainder; the codec packs the result, which
consists of multiples of one number.
"""

from hybridps.codecs.catalogue import CODECS, CodecSpec, codec_of, spec_for
from hybridps.codecs.codec import Codec, Payload
from hybridps.codecs.encoded import Encoded, Values, decoded, described
from hybridps.codecs.loops import take_
from hybridps.codecs.quantised import Quantised
from hybridps.codecs.residuals import Residuals

__all__ = [
    "CODECS",
    "Codec",
    "CodecSpec",
    "Encoded",
    "Payload",
    "Quantised",
    "Residuals",
    "Values",
    "codec_of",
    "decoded",
    "described",
    "spec_for",
    "take_",
]
