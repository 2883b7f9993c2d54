package dev.chagres.bindings;

import java.io.File;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Runs a program in a JVM of its own: libraries stay loaded for the life of a process, and some may end it. */
final class ForkedJvm {

    static final String NATIVE_ACCESS = "--enable-native-access=ALL-UNNAMED";

    private static final int TIME_LIMIT_SECONDS = 120;

    /** What came of it. */
    record Result(int exitStatus, String output) {
        /** Fails the test with all output unless the program ended as expected. */
        Result expectExit(int expected) {
            if (exitStatus != expected) {
                throw new AssertionError(
                        "expected exit status " + expected + ", got " + exitStatus + "; the output:\n" + output);
            }
            return this;
        }
    }

    private ForkedJvm() {}

    /** Runs with native access, these tests, the bindings and our own libraries on the class path. */
    static Result run(List<String> options, Class<?> program, String... arguments) {
        List<String> all = new ArrayList<>(List.of(NATIVE_ACCESS, "-XX:ErrorFile=/dev/stdout", "-cp", classPath()));
        all.addAll(options);
        all.add(program.getName());
        all.addAll(List.of(arguments));
        return run(all, Map.of());
    }

    /** Runs {@code java} with exactly these arguments, and environment variables that no surroundings disturb. */
    static Result run(List<String> arguments, Map<String, String> environment) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(arguments);
        return execute(command, environment);
    }

    static Result execute(List<String> command, Map<String, String> environment) {
        try {
            Path output = Files.createTempFile("forked", ".txt");
            ProcessBuilder builder =
                    new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(output.toFile());
            builder.environment().putAll(environment);
            Process process = builder.start();
            if (!process.waitFor(TIME_LIMIT_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
                throw new AssertionError("still running after " + TIME_LIMIT_SECONDS + " s: " + command + "\n"
                        + Files.readString(output, StandardCharsets.UTF_8));
            }
            Result result = new Result(process.exitValue(), Files.readString(output, StandardCharsets.UTF_8));
            Files.delete(output);
            return result;
        } catch (IOException failure) {
            throw new AssertionError("could not run " + command, failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new AssertionError("interrupted", interrupted);
        }
    }

    static String classPath() {
        return String.join(
                File.pathSeparator,
                bindings().toString(),
                folderOf(ForkedJvm.class).toString(),
                nativeResources().toString());
    }

    static Path bindings() {
        return folderOf(NativeLibraries.class);
    }

    /** What a class path takes to have our own libraries: the folder as the build left it, whether jarred by now or not. */
    static Path nativeResources() {
        return VendorFolder.project().resolve("native/target/classes");
    }

    /** The folder of our own libraries. */
    static Path nativeFolder() {
        Path folder = nativeResources()
                .resolve("dev/chagres/native")
                .resolve(Surroundings.ofProcess().platform());
        if (!Files.exists(folder.resolve("libchagres_te.so"))) {
            throw new AssertionError("no libchagres_te.so in " + folder + "; build with -am");
        }
        return folder;
    }

    private static Path folderOf(Class<?> type) {
        try {
            return Path.of(
                    type.getProtectionDomain().getCodeSource().getLocation().toURI());
        } catch (URISyntaxException invalid) {
            throw new AssertionError(invalid);
        }
    }
}
