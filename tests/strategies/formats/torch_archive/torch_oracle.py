"""Real torch on both sides of torch_oracle_test.cpp: torch_oracle.py load|compare|write FOLDER [SEED]. Exits non-zero and says why if something differs."""
import hashlib
import os
import random
import sys
import warnings

os.environ["TORCH_SERIALIZATION_DEBUG"] = "1"  # torch computes where storages should lie and asserts that they do
import torch  # noqa: E402

warnings.filterwarnings("ignore")


def elements(tensor):
    """Row-major bytes of any view, also of types that torch cannot copy."""
    if tensor.numel() == 0:
        return b""
    size = tensor.element_size()
    storage = bytes(tensor.untyped_storage())
    positions = torch.arange(len(storage) // size).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).reshape(-1)
    return b"".join(storage[i * size:(i + 1) * size] for i in positions.tolist())


def load(folder):
    """Blobs named DTYPE,SHAPE,….pt that hold the bytes 0, 1, 2, …"""
    count = 0
    for name in sorted(os.listdir(folder)):
        dtype, shape, grad = name[:-3].split(",")[:3]
        shape = tuple(int(n) for n in shape.split("x") if n)
        path = os.path.join(folder, name)
        for options in ({"weights_only": True}, {"weights_only": True, "mmap": True}):
            tensor = torch.load(path, **options)
            assert tensor.dtype == getattr(torch, dtype), (name, tensor.dtype)
            assert tuple(tensor.shape) == shape and tensor.is_contiguous(), (name, tensor.shape)
            assert tensor.requires_grad == (grad == "grad"), name
            found = elements(tensor)
            step = 2 if dtype == "bool" else 256
            assert found == bytes(i % step for i in range(len(found))) and len(found) == tensor.numel() * tensor.element_size(), name
        count += 1
    assert count > 0


def same(a, b, path="value"):
    assert type(a) is type(b), (path, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad, path
        assert a.is_conj() == b.is_conj() and a.is_quantized == b.is_quantized and a.layout == b.layout, path
        if a.layout != torch.strided:
            same(a.to_dense(), b.to_dense(), path)
        elif a.is_quantized:
            assert a.q_scale() == b.q_scale() and torch.equal(a.int_repr(), b.int_repr()), path
        else:
            assert elements(a) == elements(b), path
        if a._backward_hooks is not None:
            assert a._backward_hooks is not b._backward_hooks
    elif isinstance(a, torch.storage.TypedStorage):
        assert a.dtype == b.dtype and list(a) == list(b), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{path}[{i}]")
    elif hasattr(a, "__dict__"):
        same(vars(a), vars(b), path + ".__dict__")
    else:
        assert a == b, path


def compare(folder):
    """Pairs NAME.torch.pt, as torch saved it, and NAME.dckpt.pt, loaded and saved again."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".torch.pt"))
    assert names
    for name in names:
        theirs = torch.load(os.path.join(folder, name), weights_only=False)
        path = os.path.join(folder, name.replace(".torch.", ".dckpt."))
        ours = torch.load(path, weights_only=False)
        same(theirs, ours, name)
        if "Namespace" not in repr(theirs):
            same(theirs, torch.load(path, weights_only=True), name)


def write(folder, seed):
    """Random tensors, and a list of what they are: NAME DTYPE SHAPE SHA256 a line."""
    random.seed(seed)
    torch.manual_seed(seed)
    dtypes = ("bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128 "
              "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu").split()
    with open(os.path.join(folder, "list.txt"), "w") as listing:
        for i in range(150):
            name = random.choice(dtypes)
            dtype = getattr(torch, name)
            shape = [random.choice((0, 1, 2, 3, 5, 8)) if random.random() < 0.1 else random.randint(1, 6) for _ in range(random.randint(0, 4))]
            size = torch.empty(0, dtype=dtype).element_size()
            numel = 1
            for extent in shape:
                numel *= extent
            slack = random.randint(0, 40)
            data = torch.randint(0, 2 if name == "bool" else 256, ((numel + slack) * size,), dtype=torch.uint8).view(dtype)
            offset = random.randint(0, slack)
            strides = [1] * len(shape)
            for axis in reversed(range(len(shape) - 1)):
                strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
            order = list(range(len(shape)))
            random.shuffle(order)
            tensor = data.as_strided(shape, strides, offset).permute(order)
            if random.random() < 0.2 and tensor.dim() > 0:
                tensor = tensor[..., ::2]
            path = f"{i}.pt"
            torch.save(tensor, os.path.join(folder, path), _use_new_zipfile_serialization=random.random() < 0.8)
            shape = "x".join(map(str, tensor.shape)) or "-"
            listing.write(f"{path} {name} {shape} {hashlib.sha256(elements(tensor)).hexdigest()}\n")


if __name__ == "__main__":
    {"load": load, "compare": compare, "write": lambda folder: write(folder, int(sys.argv[3]))}[sys.argv[1]](sys.argv[2])
