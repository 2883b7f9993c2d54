package dev.chagres.conformance;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** How tests start a JVM of their own: small, quick to begin, on the reference, with the libraries and classes of this one. */
public final class ChildJvm {
    private ChildJvm() {}

    /** Returns a process that runs the main method of {@code program}. */
    public static ProcessBuilder of(Class<?> program, String... arguments) {
        return of(List.of(), program, arguments);
    }

    /** The same with options of the JVM. */
    public static ProcessBuilder of(List<String> options, Class<?> program, String... arguments) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        String natives = System.getProperty("chagres.native.path");
        if (natives != null) {
            command.add("-Dchagres.native.path=" + natives);
        }
        command.addAll(List.of(
                "--enable-native-access=ALL-UNNAMED",
                "-Xmx128m",
                "-Xshare:auto",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Dchagres.provider=reference"));
        command.addAll(options);
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), program.getName()));
        command.addAll(List.of(arguments));
        return new ProcessBuilder(command);
    }
}
