package dev.chagres.conformance;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** How tests start a JVM of their own: small, quick to begin, on the reference, with the libraries and classes of this one. */
public final class ChildJvm {
    private static final List<String> JAVA = List.of(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(),
            "--enable-native-access=ALL-UNNAMED",
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Dchagres.provider=reference");

    /** Made when a test first needs them. */
    private static final class Classes {
        static final ChildClasses ALL =
                ChildClasses.of(JAVA, List.of("dev.chagres.checkpoint.KilledRuns", "none", "2", "once"));
    }

    private ChildJvm() {}

    /** Returns a process that runs the main method of {@code program}. */
    public static ProcessBuilder of(Class<?> program, String... arguments) {
        return of(List.of(), program, arguments);
    }

    /** The same with options of the JVM. */
    public static ProcessBuilder of(List<String> options, Class<?> program, String... arguments) {
        List<String> command = new ArrayList<>(JAVA);
        command.addAll(Classes.ALL.options());
        command.addAll(options);
        command.add(program.getName());
        command.addAll(List.of(arguments));
        return new ProcessBuilder(command);
    }
}
