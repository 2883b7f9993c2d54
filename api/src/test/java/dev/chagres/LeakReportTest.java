package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Provider;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What {@code -Dchagres.leaks} makes a program say when it ends: read at start, so each in a JVM of its own. */
@Tag("L0")
class LeakReportTest {
    /** Opens and forgets as many buffers as it is told, and closes as many. */
    static final class Forgetful {
        public static void main(String[] arguments) {
            Device device = Device.open();
            for (int i = 0; i < Integer.parseInt(arguments[0]); i++) {
                HostBuffer.pageable(device, i);
                HostBuffer.pageable(device, i).close();
            }
        }
    }

    /** Allocates parameters, of which two are forgotten, and closes the device. */
    static final class ForgetfulTraining {
        public static void main(String[] arguments) {
            try (Device device = Device.open()) {
                var _ = new GradientNorm(allocate(device, 5), 1);
                try (Parameters closed = allocate(device, 6)) {
                    var _ = new GradientNorm(closed, 1);
                }
                allocate(device, 7); // the device takes all that this has
            }
            allocate(Device.open(), Integer.parseInt(arguments[0]));
        }

        private static Parameters allocate(Device device, long elements) {
            ModelPlan plan = new ModelPlan();
            plan.declare("x", Initializer.ones(), elements);
            return Parameters.allocate(device, plan, DType.FLOAT32, 1);
        }
    }

    @Test
    void parametersAreNamed() {
        String output = run(ForgetfulTraining.class, 0, "all", 8);
        assertEquals(1, count(output, "never closed: parameters of device 0 with 5 elements, made here"), output);
        assertEquals(1, count(output, "never closed: parameters of device 0 with 8 elements, made here"), output);
        assertEquals(2, count(output, "never closed: parameters"), output);
        assertTrue(
                count(output, "at .*LeakReportTest\\$ForgetfulTraining.allocate\\(LeakReportTest.java") >= 2, output);
    }

    @Test
    void allNamesEveryObjectAndItsMaker() {
        String output = run(0, "all", 3);
        assertEquals(3, count(output, "never closed: pageable host buffer of \\d bytes, made here"), output);
        assertEquals(1, count(output, "never closed: device 0, made here"), output);
        assertEquals(1, count(output, "never closed: stream of device 0, made here"), output);
        assertTrue(count(output, "at .*LeakReportTest\\$Forgetful.main\\(LeakReportTest.java") >= 5, output);
    }

    @Test
    void sampleNamesSome() {
        // Device and stream, then 2 x 640 buffers: ten of these 1282 are followed, of which about half are closed.
        int named = count(run(0, "sample", 640), "never closed:");
        assertTrue(named >= 1 && named <= 11, "named " + named);
    }

    @Test
    void offSaysNothing() {
        assertFalse(run(0, "off", 3).contains("never closed"));
    }

    @Test
    void anUnknownLevelIsRefused() {
        String output = run(1, "some", 3);
        assertTrue(
                output.contains("java.lang.IllegalArgumentException:"
                        + " -Dchagres.leaks: expected off, sample or all, got \"some\""),
                output);
    }

    private static int count(String output, String pattern) {
        Matcher matcher = Pattern.compile(pattern).matcher(output);
        int count = 0;
        while (matcher.find()) {
            count++;
        }
        return count;
    }

    private static String run(int exitStatus, String level, int objects) {
        return run(Forgetful.class, exitStatus, level, objects);
    }

    private static String run(Class<?> program, int exitStatus, String level, int objects) {
        List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "--enable-native-access=ALL-UNNAMED",
                "-Dchagres.leaks=" + level,
                "-Dchagres.provider=" + Provider.current().label()));
        String nativePath = System.getProperty("chagres.native.path");
        if (nativePath != null) {
            command.add("-Dchagres.native.path=" + nativePath);
        }
        command.addAll(List.of(
                "-cp",
                System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")),
                program.getName(),
                Integer.toString(objects)));
        try {
            Process process =
                    new ProcessBuilder(command).redirectErrorStream(true).start();
            String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            assertEquals(exitStatus, process.waitFor(), output);
            return output;
        } catch (IOException failure) {
            throw new AssertionError("could not run " + command, failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new AssertionError("interrupted", interrupted);
        }
    }
}
