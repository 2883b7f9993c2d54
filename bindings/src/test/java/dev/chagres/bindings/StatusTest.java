package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.Arena;
import java.lang.foreign.SymbolLookup;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.List;
import java.util.function.ObjIntConsumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Status codes become exceptions with the text of a library that says what this test made it say. */
@Tag("L0")
class StatusTest {

    private static final String LIBRARY = """
            #include <stdio.h>
            const char *te_last_error(void) { return "expected 2-D, got 3-D"; }
            const char *ops_last_error(void) { return "tokens is -1"; }
            const char *cudaGetErrorName(int code) { return code == 2 ? "cudaErrorMemoryAllocation" : NULL; }
            const char *cudaGetErrorString(int code) { return code == 2 ? "out of memory" : "unrecognized error code"; }
            int cudaGetDevice(int *device) { *device = 3; return 0; }
            const char *ncclGetErrorString(int code) { return "invalid usage"; }
            const char *ncclGetLastError(void *communicator) { return communicator ? "wrong" : "rank 7 of 4"; }
            const char *cudnnGetErrorString(int code) { return "CUDNN_STATUS_BAD_PARAM"; }
            void cudnnGetLastErrorString(char *text, unsigned long size) { snprintf(text, size, "stride is 0"); }
            """;

    @BeforeAll
    static void openLibrary(@TempDir Path folder) {
        assumeTrue(
                OpenedLibraries.LOOKUP.find("cudaGetDevice").isEmpty(),
                "skipped: another test of this process has opened the libraries of a GPU");
        assertEquals(
                "Transformer Engine: te_f returned TE_ERROR (1): the library gave no text",
                assertThrows(TransformerEngineException.class, () -> Status.te(1, "te_f"))
                        .getMessage(),
                "before any library is open");
        assertEquals(
                "CUDA runtime: cudaFree returned unknown cudaError_t (2): the library gave no text",
                assertThrows(CudaException.class, () -> Status.cuda(2, "cudaFree"))
                        .getMessage());
        Path file = folder.resolve("libtexts.so");
        FakeLibrary.compile(file, LIBRARY);
        OpenedLibraries.add(SymbolLookup.libraryLookup(file, Arena.global()));
    }

    static Stream<Arguments> failures() {
        return Stream.of(
                Arguments.of(
                        check(Status::te),
                        1,
                        "Transformer Engine: f returned TE_ERROR (1) on device 3:" + " expected 2-D, got 3-D"),
                Arguments.of(
                        check(Status::te),
                        4,
                        "Transformer Engine: f returned TE_NOT_OPEN (4) on device 3:" + " expected 2-D, got 3-D"),
                Arguments.of(
                        check(Status::te),
                        -1,
                        "Transformer Engine: f returned unknown TeStatus (-1) on device 3:" + " expected 2-D, got 3-D"),
                Arguments.of(
                        check(Status::ops),
                        1,
                        "Chagres operations: f returned OPS_INVALID_ARGUMENT (1) on device" + " 3: tokens is -1"),
                Arguments.of(
                        check(Status::ops),
                        99,
                        "Chagres operations: f returned unknown OpsStatus (99) on device" + " 3: tokens is -1"),
                Arguments.of(
                        check(Status::cuda),
                        2,
                        "CUDA runtime: f returned cudaErrorMemoryAllocation (2) on device" + " 3: out of memory"),
                Arguments.of(
                        check(Status::cuda),
                        5,
                        "CUDA runtime: f returned unknown cudaError_t (5) on device 3:" + " unrecognized error code"),
                Arguments.of(
                        check(Status::nccl),
                        5,
                        "NCCL: f returned ncclInvalidUsage (5) on device 3: invalid usage;" + " rank 7 of 4"),
                Arguments.of(
                        check(Status::cudnn),
                        2000,
                        "cuDNN: f returned CUDNN_STATUS_BAD_PARAM (2000) on device 3:" + " stride is 0"));
    }

    private static ObjIntConsumer<String> check(Check check) {
        return (function, status) -> check.check(status, function);
    }

    @FunctionalInterface
    private interface Check {
        void check(int status, String function);
    }

    @ParameterizedTest
    @MethodSource("failures")
    void aFailureHasTheLibrarysWords(ObjIntConsumer<String> check, int status, String expected) {
        NativeException thrown = assertThrows(NativeException.class, () -> check.accept("f", status));
        assertEquals(expected, thrown.getMessage());
        assertEquals(status, thrown.code());
        assertEquals(3, thrown.device());
    }

    @ParameterizedTest
    @ValueSource(ints = {35, 100})
    void aMachineWithoutDriverIsTold(int status) {
        assertEquals(
                "CUDA runtime: f returned unknown cudaError_t (" + status + ") on device 3: unrecognized error code; "
                        + Driver.probe().description() + "; ./chagres doctor says what is missing",
                assertThrows(CudaException.class, () -> Status.cuda(status, "f"))
                        .getMessage());
    }

    @Test
    void successCostsNoMemory() {
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        checkAll();
        long before = threads.getCurrentThreadAllocatedBytes();
        for (int i = 0; i < 100_000; i++) {
            checkAll();
        }
        long allocated = threads.getCurrentThreadAllocatedBytes() - before;
        assertTrue(allocated < 10_000, "allocated " + allocated + " bytes in 500,000 checks");
    }

    private static void checkAll() {
        Status.te(0, "te_f");
        Status.ops(0, "ops_f");
        Status.cuda(0, "cudaF");
        Status.nccl(0, "ncclF");
        Status.cudnn(0, "cudnnF");
    }

    @Test
    void namesAgreeWithTheGeneratedConstants() {
        record Name(String expected, int code, Check check) {}
        List<Name> names = List.of(
                new Name("TE_ERROR", TransformerEngine.TE_ERROR(), Status::te),
                new Name("TE_REFUSED", TransformerEngine.TE_REFUSED(), Status::te),
                new Name("TE_MISSING", TransformerEngine.TE_MISSING(), Status::te),
                new Name("TE_NOT_OPEN", TransformerEngine.TE_NOT_OPEN(), Status::te),
                new Name("OPS_INVALID_ARGUMENT", Ops.OPS_INVALID_ARGUMENT(), Status::ops),
                new Name("OPS_CUDA_ERROR", Ops.OPS_CUDA_ERROR(), Status::ops),
                new Name("OPS_COMPILE_ERROR", Ops.OPS_COMPILE_ERROR(), Status::ops),
                new Name("OPS_NOT_OPEN", Ops.OPS_NOT_OPEN(), Status::ops),
                new Name("ncclUnhandledCudaError", Nccl.ncclUnhandledCudaError(), Status::nccl),
                new Name("ncclSystemError", Nccl.ncclSystemError(), Status::nccl),
                new Name("ncclInternalError", Nccl.ncclInternalError(), Status::nccl),
                new Name("ncclInvalidArgument", Nccl.ncclInvalidArgument(), Status::nccl),
                new Name("ncclInvalidUsage", Nccl.ncclInvalidUsage(), Status::nccl),
                new Name("ncclRemoteError", Nccl.ncclRemoteError(), Status::nccl),
                new Name("ncclInProgress", Nccl.ncclInProgress(), Status::nccl));
        for (Name name : names) {
            NativeException thrown =
                    assertThrows(NativeException.class, () -> name.check().check(name.code(), "f"));
            assertEquals(name.expected(), thrown.codeName());
        }
    }
}
