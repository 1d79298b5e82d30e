"""What hosts do while devices idle; tables by hand, in µs."""

from pathlib import Path

import pytest
from support.trace_builder import operations

from kair_engine.timeline.host_activity import HOST_KINDS, host_activity, host_time, idle_stretches
from kair_engine.trace.operations import Operations


def spent(ops: Operations) -> list[dict[str, tuple[float, str | None]]]:
    """Per rank, what its host does while its device idles, in µs, with the operation that most of it is in."""
    rank, begin, end = idle_stretches(ops)
    found = host_time(ops, rank, begin, end)
    assert found.spent_ns.sum(axis=1).tolist() == (end - begin).tolist()
    result: list[dict[str, tuple[float, str | None]]] = []
    for at in range(len(ops.ranks)):
        of_kind = found.spent_ns[rank == at].sum(axis=0).tolist()
        names = [ops.name_text.get(code) for code in found.operator[at].tolist()]
        columns = zip(HOST_KINDS, of_kind, names, strict=True)
        result.append({kind: (ns / 1e3, name) for kind, ns, name in columns if ns})
    return result


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaFree", "allocator"),
        ("cudaMallocAsync_v11020", "allocator"),
        ("cudaHostAlloc", "allocator"),
        ("cuMemSetAccess", "allocator"),
        ("cuMemUnmap", "allocator"),
        ("hipMalloc", "allocator"),
        ("hipExtMallocWithFlags", "allocator"),
        ("aclrtMallocPhysical", "allocator"),
        ("urUSMDeviceAlloc", "allocator"),
        ("zeMemAllocDevice", "allocator"),
        ("cudaLaunchKernel", "host"),
        ("cudaMemGetInfo", "host"),
        ("cuMemcpyHtoDAsync_v2", "host"),
        ("cudaGraphLaunch", "host"),
        ("hipMemcpyWithStream", "host"),
        ("aten::empty_strided", "host"),
        ("aten::_foreach_map", "host"),
        ("_compile.compile_inner_(dynamo_timed)", "compilation"),
        ("create_aot_dispatcher_function_(dynamo_timed)", "compilation"),
        ("compile_fx_inner", "compilation"),
        ("async_compile.wait", "compilation"),
        ("triton_compile", "compilation"),
        ("PjRtStreamExecutorClient::Compile", "compilation"),
        ("TSL:XlaCompile", "compilation"),
        ("nvrtcCompileProgram", "compilation"),
        ("Torch-Compiled_Region:_0/0", "host"),
        ("CompiledFunctionBackward", "host"),
        ("aclopCompileAndExecute", "host"),
    ],
)
def test_a_kind_follows_from_the_name(tmp_path: Path, name: str, kind: str) -> None:
    ops = operations(tmp_path, f"step 0: 0+100\n0 main | {name} 1+2\n0 gpu7 | gemm 5+30")
    row = next(at for at in range(len(ops)) if ops.operator(at) == name)
    assert HOST_KINDS[host_activity(ops)[row]] == kind


def test_what_is_within_a_compilation_compiles(tmp_path: Path) -> None:
    """Of 100 µs the device idles before 10 and from 20 to 100; rank 0 compiles from 25 to 85, autotuning included."""
    table = """
    step 0: 0+100
    0-1 main | launch 2+3 ^1
    0-1 gpu7 | gemm 10+10 ^1
    0 main | _compile.compile_inner 25+60 | compile_fx_inner 30+50 | cudaMalloc 40+10 | cudaDeviceSynchronize 60+5 :sync
    """
    ops = operations(tmp_path, table)
    inner = [at for at in range(len(ops)) if ops.operator(at) in {"cudaMalloc", "cudaDeviceSynchronize"}]
    assert {HOST_KINDS[code] for code in host_activity(ops)[inner]} == {"compilation"}
    assert spent(ops) == [{"compilation": (60, "_compile.compile_inner"), "host": (30, None)}, {"host": (90, None)}]


def test_a_scope_of_a_compiler_counts_like_an_operation(tmp_path: Path) -> None:
    table = "step 0: 0+100\n0 main | compile_fx 20+60 :scope | aten::add 30+10\n0 gpu7 | gemm 0+10"
    assert spent(operations(tmp_path, table)) == [{"compilation": (60, "compile_fx"), "host": (30, None)}]


def test_the_allocator_holds_up_what_waits_for_it_on_another_thread(tmp_path: Path) -> None:
    """The main thread waits in a synchronisation for the backward thread, which frees and allocates."""
    table = """
    step 0: 0+100
    0 main | aten::item 10+90 | cudaStreamSynchronize 10+90 :sync
    0 th2 | aten::empty 20+60 /backward | cudaFree 20+40 /backward | cudaMalloc 60+10 /backward
    0 gpu7 | gemm 0+30
    """
    assert spent(operations(tmp_path, table)) == [
        {"allocator": (40, "cudaFree"), "host": (10, "aten::empty"), "synchronising": (20, "cudaStreamSynchronize")}
    ]


def test_a_scope_names_what_the_host_does_without_an_operator(tmp_path: Path) -> None:
    """Of 60 idle µs the scope is around 50, the operator in it around 10."""
    table = "step 0: 0+100\n0 main | log_metrics 50+50 :scope | aten::copy_ 60+10\n0 gpu7 | gemm 0+40"
    assert spent(operations(tmp_path, table)) == [{"host": (60, "log_metrics")}]


def test_garbage_collection_and_input_keep_their_own_kind(tmp_path: Path) -> None:
    table = """
    step 0: 0+100
    0 main | fetch 0+30 :input /input | cudaHostAlloc 10+10 /input | gc 40+20 :gc | aten::add 60+10
    0 th3 | fetch 30+70 :input /input
    0 gpu7 | gemm 90+10
    """
    found = spent(operations(tmp_path, table))
    assert found == [{"garbage_collection": (20, "gc"), "input": (30, "fetch"), "host": (40, None)}]


def test_ranks_whose_clocks_are_decades_apart_and_nothing_idle(tmp_path: Path) -> None:
    table = "step 0: 0+100\n0-1 main | cudaFree 20+60\n0 gpu7 | gemm 0+100\n1 gpu7 | gemm 0+50"
    ops = operations(tmp_path, table, shift={1: 1e15})
    assert spent(ops) == [{}, {"allocator": (30, "cudaFree"), "host": (20, None)}]
