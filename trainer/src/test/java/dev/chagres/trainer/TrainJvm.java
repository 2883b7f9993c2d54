package dev.chagres.trainer;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * How tests start a command in a JVM of its own: quick to begin, on the reference, with the libraries and classes of this
 * one. Launch gives the same options to the ranks that it starts.
 */
final class TrainJvm {
    private TrainJvm() {}

    /**
     * Returns the command line.
     *
     * @param environment variables, {@code NAME=value}
     * @param options of the JVM
     */
    static List<String> command(
            List<String> environment, List<String> options, Class<?> program, List<String> arguments) {
        // A shell that runs tests in the background makes its children ignore Ctrl-C; this undoes it.
        List<String> command = new ArrayList<>(List.of("env", "--default-signal=INT"));
        command.addAll(environment);
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        String natives = System.getProperty("chagres.native.path");
        if (natives != null) {
            command.add("-Dchagres.native.path=" + natives);
        }
        command.addAll(List.of(
                "--enable-native-access=ALL-UNNAMED",
                "-Xshare:auto",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Dchagres.provider=reference"));
        command.addAll(options);
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), program.getName()));
        command.addAll(arguments);
        return command;
    }
}
