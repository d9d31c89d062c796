"""Makes the files beside it with torch 2.11.0 and Python's zipfile: python make.py. Values are 0, 1, 2, … unless said otherwise."""
import argparse
import collections
import io
import os
import warnings
import zipfile

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
warnings.filterwarnings("ignore")


def save(name, value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(buffer.getvalue())


# One tensor each: every element type, bytes 0, 1, 2, … 0x2f seen as a (2, 3) tensor of that type.
DTYPES = ("bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128 "
          "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2").split()
for name in DTYPES:
    dtype = getattr(torch, name)
    size = torch.empty(0, dtype=dtype).element_size()
    data = torch.arange(6 * size, dtype=torch.int64).remainder(2 if name == "bool" else 256).to(torch.uint8)
    save(f"dtype_{name}.pt", data.view(dtype).reshape(2, 3))

# One tensor each: shapes and views.
numbers = torch.arange(24, dtype=torch.float32)
save("scalar.pt", torch.tensor(7.5))
save("empty.pt", torch.zeros(0, 3))
save("five_dims.pt", numbers.reshape(1, 2, 3, 2, 2))
save("requires_grad.pt", torch.arange(3.0).requires_grad_())
save("parameter.pt", torch.nn.Parameter(torch.arange(3.0)))
save("view.pt", numbers[5:11].reshape(2, 3))
save("transposed.pt", numbers.reshape(4, 6).t())
save("strided.pt", numbers.reshape(4, 6)[1:4:2, 1:6:3])
save("expanded.pt", torch.tensor([1.0, 2.0, 3.0]).expand(2, 3))
save("conjugate.pt", torch.tensor([1 + 2j]).conj())
save("bytes_view.pt", torch.arange(12, dtype=torch.float32).view(torch.uint16)[3:9])
attributes = torch.arange(3.0)
attributes.note = "kept"
save("attributes.pt", attributes)
save("sparse.pt", torch.eye(2).to_sparse())
save("quantized.pt", torch.quantize_per_tensor(torch.arange(3.0), 0.5, 1, torch.qint8))
torch.serialization.set_crc32_options(False)
save("no_crc.pt", torch.arange(6.0).reshape(2, 3))
torch.serialization.set_crc32_options(True)

# Whole files, in the zip and in the stream form.
tied = torch.arange(6.0).reshape(2, 3)
state = {
    "iteration": 100,
    "checkpoint_version": 3.0,
    "args": argparse.Namespace(hidden_size=6, names=("a", "b"), big=2**70),
    "model": collections.OrderedDict([("embedding", tied), ("output", tied), ("column", tied[:, 1]), ("half", torch.arange(4, dtype=torch.bfloat16))]),
    "rng": {"state": torch.arange(5, dtype=torch.uint8), "none": None, "flags": [True, False]},
    "storage": torch.arange(3, dtype=torch.int64).storage(),
    "parameter": torch.nn.Parameter(torch.arange(2.0)),
    7: {1, 2},
}
save("state.pt", state)
save("state_protocol4.pt", state, pickle_protocol=4)
save("state_stream.pt", state, _use_new_zipfile_serialization=False)
save("state_stream_protocol4.pt", state, _use_new_zipfile_serialization=False, pickle_protocol=4)

# Plain zip archives.
for name, options in {"zipfile.zip": {}, "zipfile_zip64.zip": {"force_zip64": True}}.items():
    with zipfile.ZipFile(os.path.join(HERE, name), "w", zipfile.ZIP_STORED) as archive:
        for member, data in (("archive/first", b"one"), ("archive/second", b"2" * 5000)):
            with archive.open(zipfile.ZipInfo(member), "w", **options) as file:
                file.write(data)
with zipfile.ZipFile(os.path.join(HERE, "deflated.zip"), "w") as archive:
    archive.writestr(zipfile.ZipInfo("archive/first"), b"one", zipfile.ZIP_STORED)
    archive.writestr(zipfile.ZipInfo("archive/second"), b"2" * 5000, zipfile.ZIP_DEFLATED)

# The records of an archive whose first member has 5 GiB, without those 5 GiB: torch seeks over them and takes 0 for their CRC.
SIZE = 5 << 30
path = os.path.join(HERE, "big.pt")
writer = torch._C.PyTorchFileWriter(path)
writer.write_record_metadata("data/0", SIZE)
writer.write_record_metadata("data/1", 12)
writer.write_end_of_file()
with open(path, "rb") as file:
    start = file.read(64)
    head = 30 + int.from_bytes(start[26:28], "little") + int.from_bytes(start[28:30], "little")
    file.seek(0)
    records = file.read(head)
    file.seek(head + SIZE)
    records += file.read()
os.remove(path)
with open(os.path.join(HERE, "zip64_records.bin"), "wb") as file:
    file.write(records)
