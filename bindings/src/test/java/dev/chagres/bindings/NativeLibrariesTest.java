package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.te.TransformerEngine;
import java.io.File;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Loading in JVMs of its own, each on a machine without a GPU. */
@Tag("L0")
class NativeLibrariesTest {

    private static final String REFERENCE = "-Dchagres.provider=reference";

    /** Loads from many threads at once, then calls through each binding that the reference serves. */
    static final class Load {
        public static void main(String[] arguments) throws InterruptedException {
            CountDownLatch start = new CountDownLatch(1);
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                threads.add(Thread.ofPlatform().start(() -> {
                    try {
                        start.await();
                    } catch (InterruptedException interrupted) {
                        throw new AssertionError(interrupted);
                    }
                    NativeLibraries.ensureLoaded();
                    System.out.println("loaded");
                }));
            }
            start.countDown();
            for (Thread thread : threads) {
                thread.join();
            }
            try (Arena arena = Arena.ofConfined()) {
                System.out.println("has=" + TransformerEngine.te_has(arena.allocateFrom("create_tensor")));
                int status = TransformerEngine.te_open(arena.allocateFrom("/another/library.so"));
                System.out.println("open=" + refusal(() -> Status.te(status, "te_open")));
            }
            System.out.println("ops=" + Ops.ops_last_error().getString(0));
        }
    }

    /** Tries to load twice and says what is thrown. */
    static final class LoadBadly {
        public static void main(String[] arguments) {
            for (int i = 0; i < 2; i++) {
                try {
                    NativeLibraries.ensureLoaded();
                    System.out.println("loaded");
                } catch (RuntimeException refused) {
                    Throwable cause = refused.getCause();
                    System.out.println(refused.getClass().getSimpleName() + " cause "
                            + (cause == null ? "none" : cause.getClass().getSimpleName()) + ": "
                            + String.valueOf(refused.getMessage()).replace('\n', '|'));
                }
            }
        }
    }

    private static String refusal(Runnable check) {
        try {
            check.run();
            return "success";
        } catch (NativeException refused) {
            return String.valueOf(refused.getMessage());
        }
    }

    private static List<String> lines(ForkedJvm.Result result) {
        return result.expectExit(0).output().lines().toList();
    }

    @Test
    void threadsLoadTheReferenceOnce() {
        List<String> lines = lines(ForkedJvm.run(List.of(REFERENCE), Load.class));
        assertEquals(8, lines.stream().filter("loaded"::equals).count(), lines.toString());
        assertTrue(lines.contains("has=1"), lines.toString());
        assertTrue(lines.contains("ops="), lines.toString());
        String open = lines.stream()
                .filter(line -> line.startsWith("open="))
                .findFirst()
                .orElse("");
        assertTrue(
                open.startsWith("open=Transformer Engine: te_open returned TE_ERROR (1) on device 0: te_open: this"
                        + " process has opened " + ForkedJvm.nativeFolder()),
                open);
    }

    private static void assertSaidTwice(ForkedJvm.Result result, String type, String start) {
        List<String> said = lines(result).stream()
                .filter(line -> line.contains(" cause ") || line.equals("loaded"))
                .toList();
        assertEquals(2, said.size(), result.output());
        assertTrue(
                said.getFirst().startsWith(type + " cause ") && said.getFirst().contains(start), result.output());
        assertTrue(said.getLast().startsWith(type + " cause " + type + ": " + start), result.output());
        assertFalse(result.output().contains("NoClassDefFoundError"), result.output());
    }

    @Test
    void aFailureIsRememberedWithItsCause(@TempDir Path folder) {
        ForkedJvm.Result result = ForkedJvm.run(List.of(REFERENCE, "-Dchagres.native.path=" + folder), LoadBadly.class);
        assertSaidTwice(
                result,
                "MissingLibraryException",
                "Chagres native libraries: NOT_FOUND: libchagres_te.so|  tried -Dchagres.native.path=" + folder);
    }

    @Test
    void aLibraryThatTheLoaderRefusesIsQuoted(@TempDir Path folder) throws IOException {
        for (String name : List.of("libchagres_te.so", "libchagres_reference.so")) {
            Files.writeString(folder.resolve(name), "no library");
        }
        ForkedJvm.Result result = ForkedJvm.run(List.of(REFERENCE, "-Dchagres.native.path=" + folder), LoadBadly.class);
        assertSaidTwice(
                result,
                "MissingLibraryException",
                "Chagres native libraries: NOT_LOADABLE: " + folder.resolve("libchagres_reference.so"));
        assertTrue(
                result.output()
                        .contains(
                                "libchagres_reference.so is not a shared library (no ELF header)|  the loader said: "),
                result.output());
        assertTrue(result.output().contains("to mend it: take -Dchagres.native.path away"), result.output());
    }

    @Test
    void librariesOfAnotherReleaseAreRefused(@TempDir Path folder) {
        for (String name : List.of("libchagres_te.so", "libchagres_reference.so")) {
            FakeLibrary.compile(folder.resolve(name), "int unrelated;");
        }
        ForkedJvm.Result result = ForkedJvm.run(List.of(REFERENCE, "-Dchagres.native.path=" + folder), LoadBadly.class);
        assertSaidTwice(
                result,
                "MissingLibraryException",
                "Chagres native libraries: NOT_LOADABLE: no opened library has te_open|  to mend it: use the"
                        + " chagres-native jar of the same version");
    }

    @Test
    void cudaWithoutItsLibrariesIsNeverTheReference() {
        ForkedJvm.Result result = ForkedJvm.run(
                List.of("-Dchagres.provider=cuda", "-Dchagres.cudart.path=/absent/libcudart.so.13"), LoadBadly.class);
        assertSaidTwice(
                result,
                "MissingLibraryException",
                "CUDA runtime: NOT_FOUND: libcudart.so.13, wanted 13.0 <= version < 14.0|  tried"
                        + " -Dchagres.cudart.path /absent/libcudart.so.13: no such file or folder");
    }

    @Test
    void aBadPropertyIsRefusedTwice() {
        assertSaidTwice(
                ForkedJvm.run(List.of("-Dchagres.provider=tpu"), LoadBadly.class),
                "IllegalArgumentException",
                "-Dchagres.provider: expected auto, cuda or reference, got \"tpu\"");
        assertSaidTwice(
                ForkedJvm.run(List.of(REFERENCE, "-Dchagres.versions=x"), LoadBadly.class),
                "IllegalArgumentException",
                "-Dchagres.versions: expected strict or warn, got \"x\"");
    }

    /** Opens the libraries in two class loaders that do not know each other, as two applications of a server do. */
    public static final class LoadInTwoClassLoaders {
        /** Called through the first bindings that a class loader has. */
        public static int devices() {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment count = arena.allocate(ValueLayout.JAVA_INT);
                Status.cuda(CudaRuntime.cudaGetDeviceCount(count), "cudaGetDeviceCount");
                return count.get(ValueLayout.JAVA_INT, 0);
            }
        }

        public static void main(String[] arguments) throws Exception {
            List<URL> urls = new ArrayList<>();
            for (String part : System.getProperty("java.class.path").split(File.pathSeparator)) {
                urls.add(Path.of(part).toUri().toURL());
            }
            for (int i = 0; i < 2; i++) {
                var loader = new URLClassLoader(urls.toArray(URL[]::new), ClassLoader.getPlatformClassLoader());
                try {
                    loader.loadClass(NativeLibraries.class.getName())
                            .getMethod("ensureLoaded")
                            .invoke(null);
                    Object count = loader.loadClass(LoadInTwoClassLoaders.class.getName())
                            .getMethod("devices")
                            .invoke(null);
                    System.out.println("loaded, devices " + count);
                } catch (InvocationTargetException refused) {
                    System.out.println(String.valueOf(refused.getCause()).replace('\n', '|'));
                }
            }
        }
    }

    @Test
    void twoClassLoadersOpenTheLibraries() {
        List<String> lines = lines(ForkedJvm.run(List.of(REFERENCE), LoadInTwoClassLoaders.class));
        assertEquals(2, lines.stream().filter("loaded, devices 8"::equals).count(), lines.toString());
    }

    @ParameterizedTest
    @CsvSource({
        "Windows 11, WSL 2 (wsl --install)",
        "Mac OS X, docker run --platform linux/amd64 eclipse-temurin:25",
        "FreeBSD, docker run --platform linux/amd64 eclipse-temurin:25"
    })
    void anotherSystemIsToldWhatRunsWhere(String system, String instead) {
        ForkedJvm.Result result = ForkedJvm.run(List.of("-Dos.name=" + system, "-Dos.arch=aarch64"), LoadBadly.class);
        assertSaidTwice(
                result,
                "MissingLibraryException",
                "Chagres native libraries: NOT_FOUND: no libraries for " + system + " on aarch64|");
        assertTrue(
                result.output()
                        .contains("to mend it: run on Linux on x86-64: the reference on any such machine, cuda where an"
                                + " NVIDIA GPU of compute capability 9.0 is; here that is "),
                result.output());
        assertTrue(result.output().contains(instead), result.output());
        ForkedJvm.Result doctor = ForkedJvm.run(List.of("-Dos.name=" + system), Doctor.class);
        assertTrue(doctor.expectExit(1).output().contains("no libraries for " + system), doctor.output());
    }

    /** Reads constants of each library, whose classes also have the functions, and then loads twice. */
    static final class ReadConstantsThenLoad {
        public static void main(String[] arguments) {
            System.out.println("constants " + TransformerEngine.TE_ERROR() + CudaRuntime.cudaErrorInvalidValue()
                    + Nccl.ncclInvalidArgument() + Cudnn.CUDNN_STATUS_SUCCESS() + Ops.OPS_SUCCESS());
            LoadBadly.main(arguments);
        }
    }

    @Test
    void deniedNativeAccessIsToldAlikeWhateverClassComesFirst() {
        List<String> arguments = List.of(
                "--illegal-native-access=deny",
                "-cp",
                ForkedJvm.classPath(),
                REFERENCE,
                ReadConstantsThenLoad.class.getName());
        ForkedJvm.Result result = ForkedJvm.run(arguments, Map.of());
        assertTrue(result.output().contains("constants 11400"), result.output());
        assertSaidTwice(
                result,
                "IllegalStateException",
                "the JVM denies calls to native libraries: start it with --enable-native-access=ALL-UNNAMED");
    }

    @Test
    void aJvmThatDeniesNativeAccessIsToldTheFlag() {
        List<String> arguments = List.of(
                "--illegal-native-access=deny", "-cp", ForkedJvm.classPath(), REFERENCE, LoadBadly.class.getName());
        assertSaidTwice(
                ForkedJvm.run(arguments, Map.of()),
                "IllegalStateException",
                "the JVM denies calls to native libraries: start it with --enable-native-access=ALL-UNNAMED");
    }

    /** The module of our own libraries comes along without being told, and nothing else is needed. */
    @Test
    void theBindingsLoadAsAModule() {
        List<String> arguments = List.of(
                "--enable-native-access=dev.chagres.bindings",
                "--illegal-native-access=deny",
                "-p",
                ForkedJvm.bindings() + File.pathSeparator + ForkedJvm.nativeResources(),
                REFERENCE,
                "-m",
                "dev.chagres.bindings/dev.chagres.bindings.Doctor");
        String output = ForkedJvm.run(arguments, Map.of()).expectExit(0).output();
        assertTrue(output.contains("The provider works."), output);
        assertTrue(output.contains("native access: set"), output);
        assertTrue(output.contains(ForkedJvm.nativeFolder().toString()), output);
    }
}
