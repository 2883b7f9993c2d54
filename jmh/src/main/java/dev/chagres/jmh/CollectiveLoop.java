package dev.chagres.jmh;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;

/** A loop in C that calls {@code ncclAllReduce}, compiled by {@code $CC}, or {@code cc}, when it is made: what a C program's calls cost. */
final class CollectiveLoop {
    private static final String SOURCE = "collective_loop.c";
    private static final FunctionDescriptor DESCRIPTOR = FunctionDescriptor.of(
            ValueLayout.JAVA_INT,
            ValueLayout.ADDRESS,
            ValueLayout.ADDRESS,
            ValueLayout.ADDRESS,
            ValueLayout.JAVA_LONG,
            ValueLayout.JAVA_INT,
            ValueLayout.JAVA_INT,
            ValueLayout.ADDRESS,
            ValueLayout.ADDRESS,
            ValueLayout.JAVA_INT);

    private final MethodHandle loop;

    private CollectiveLoop(MethodHandle loop) {
        this.loop = loop;
    }

    /** Compiles and opens it; its code stays until {@code arena} is closed. */
    static CollectiveLoop compile(Arena arena) {
        try {
            Path folder = Files.createTempDirectory("collective-loop");
            Path source = folder.resolve(SOURCE);
            Path library = folder.resolve("libcollective_loop.so");
            try {
                try (InputStream text = CollectiveLoop.class.getResourceAsStream(SOURCE)) {
                    Files.copy(Objects.requireNonNull(text, SOURCE), source);
                }
                run(System.getenv().getOrDefault("CC", "cc"), source, library);
                MemorySegment function =
                        SymbolLookup.libraryLookup(library, arena).findOrThrow("collective_loop");
                return new CollectiveLoop(Linker.nativeLinker().downcallHandle(function, DESCRIPTOR));
            } finally {
                Files.deleteIfExists(library);
                Files.deleteIfExists(source);
                Files.delete(folder);
            }
        } catch (IOException failure) {
            throw new UncheckedIOException("cannot compile " + SOURCE, failure);
        }
    }

    private static void run(String compiler, Path source, Path library) throws IOException {
        Process process = new ProcessBuilder(
                        compiler, "-O2", "-shared", "-fPIC", "-o", library.toString(), source.toString())
                .inheritIO()
                .start();
        try {
            int status = process.waitFor();
            if (status != 0) {
                throw new IOException(compiler + " ended with " + status);
            }
        } catch (InterruptedException interrupted) {
            process.destroy();
            Thread.currentThread().interrupt();
            throw new IOException("interrupted while " + compiler + " ran", interrupted);
        }
    }

    /** Enqueues {@code times} sums of {@code x}, FLOAT32, into {@code y}. */
    void allReduce(Tensor x, Tensor y, MemorySegment communicator, Stream stream, int times) {
        int status;
        try {
            status = (int) loop.invokeExact(
                    Nccl.ncclAllReduce$address(),
                    x.pointer(),
                    y.pointer(),
                    x.count(),
                    Nccl.ncclFloat32(),
                    Nccl.ncclSum(),
                    communicator,
                    stream.handle(),
                    times);
        } catch (RuntimeException | Error failure) {
            throw failure;
        } catch (Throwable impossible) {
            throw new AssertionError(impossible);
        }
        Status.nccl(status, "ncclAllReduce");
    }
}
