package dev.chagres.bindings;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Small shared libraries that stand in for NVIDIA's: real ones from the C compiler, or an ELF header alone. */
final class FakeLibrary {

    private FakeLibrary() {}

    /** Compiles C into a shared library. */
    static void compile(Path file, String source, String... options) {
        try {
            Path code = Files.createTempFile("fake", ".c");
            Files.writeString(code, source);
            List<String> command =
                    new ArrayList<>(List.of("cc", "-shared", "-fPIC", "-o", file.toString(), code.toString()));
            command.addAll(List.of(options));
            ForkedJvm.execute(command, Map.of()).expectExit(0);
            Files.delete(code);
        } catch (IOException failure) {
            throw new AssertionError(failure);
        }
    }

    /** Compiles every part of one of NVIDIA's libraries; the main part answers {@code version}. */
    static void compile(VendorLibrary library, Path folder, LibraryVersion version) {
        for (String part : library.parts()) {
            compile(folder.resolve(part.replace("*", "0")), source(library, part, version));
        }
    }

    /** Compiles the main part alone, in place of the one that is there. */
    static void compileMain(VendorLibrary library, Path main, LibraryVersion version) {
        compile(main, source(library, library.mainPart(), version));
    }

    private static String source(VendorLibrary library, String part, LibraryVersion version) {
        if (!part.equals(library.mainPart())) {
            return "int " + part.replaceAll("\\W", "_") + ";";
        }
        int decimal = version.major() * 10000 + version.minor() * 100 + version.patch();
        return switch (library) {
            case CUDA_RUNTIME ->
                "int cudaRuntimeGetVersion(int *v) { *v = %d; return 0; }"
                        .formatted(version.major() * 1000 + version.minor() * 10);
            case NVRTC ->
                "int nvrtcVersion(int *major, int *minor) { *major = %d; *minor = %d; return 0; }"
                        .formatted(version.major(), version.minor());
            case CUBLAS -> "unsigned long cublasLtGetVersion(void) { return %d; }".formatted(decimal);
            case CUDNN -> "unsigned long cudnnGetVersion(void) { return %d; }".formatted(decimal);
            case NCCL -> "int ncclGetVersion(int *v) { *v = %d; return 0; }".formatted(decimal);
            case TRANSFORMER_ENGINE -> "int nvte_fake(void) { return 0; }";
        };
    }

    /** Writes files that look like shared libraries for this processor from outside; the loader would refuse them. */
    static void writeHeaders(VendorLibrary library, Path folder) throws IOException {
        Files.createDirectories(folder);
        for (String part : library.parts()) {
            Files.write(folder.resolve(part.replace("*", "0")), header(machine()));
        }
    }

    static short machine() {
        return (short) (System.getProperty("os.arch").equals("aarch64") ? 183 : 62);
    }

    /** An ELF header of a 64-bit little-endian shared library without segments. */
    static byte[] header(short machine) {
        ByteBuffer header = ByteBuffer.allocate(64).order(ByteOrder.LITTLE_ENDIAN);
        header.putInt(0, 0x464c457f)
                .put(4, (byte) 2)
                .put(5, (byte) 1)
                .putShort(16, (short) 3)
                .putShort(18, machine);
        return header.array();
    }
}
