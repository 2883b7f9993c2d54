package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.Device;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.bindings.Provider;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

/** {@code --sm-margin} and {@code --product-sm-margin} through the whole program, on one rank and on two. */
@Tag("L0")
@Tag("L2")
class SmMarginTest {
    private static final double TOLERANCE = Provider.current() == Provider.REFERENCE ? 0 : 1e-2;
    private static final String OPTIONS = "--model tiny --context 64 --tokens-per-step 512 --steps 3 --recipe bf16";

    @TempDir
    private Path folder;

    /** A thread that has computed norms of Transformer Engine takes no other margin, and other tests use this one. */
    private static <T> T onItsOwnThread(Callable<T> body) {
        FutureTask<T> task = new FutureTask<>(body);
        Thread.ofPlatform().name("train").start(task);
        try {
            return task.get();
        } catch (Exception e) {
            throw new AssertionError(e.getCause());
        }
    }

    private static int most() {
        try (Device device = Device.open()) {
            return device.multiprocessorCount() - 1;
        }
    }

    /** Returns the losses of a run. */
    private List<Double> train(String options) throws IOException {
        Path report = folder.resolve("r.jsonl");
        var err = new ByteArrayOutputStream();
        int status = onItsOwnThread(() -> Train.run(
                DevicePlatform::open,
                new StandardOutput(new ByteArrayOutputStream(), StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                (OPTIONS + options + " --report " + report).split(" ")));
        assertEquals(0, status, () -> err.toString(StandardCharsets.UTF_8));
        List<Double> losses = new ArrayList<>();
        for (String line : Files.readAllLines(report)) {
            if (JSON.std.mapFrom(line).get("loss") instanceof Number loss) {
                losses.add(loss.doubleValue());
            }
        }
        assertEquals(3, losses.size());
        return losses;
    }

    private void assertSameLosses(String options) throws IOException {
        int norms = Math.min(16, most());
        int products = Math.min(1, most());
        List<Double> whole = train(options);
        List<Double> left = train(options + " --sm-margin " + norms + " --product-sm-margin " + products);
        for (int step = 0; step < whole.size(); step++) {
            assertEquals(whole.get(step), left.get(step), TOLERANCE, "step " + (step + 1));
        }
    }

    @Test
    void oneRank() throws IOException {
        assertSameLosses("");
    }

    @Test
    void twoRanks() throws IOException {
        DevicesNeeded.assume(2);
        assertSameLosses(" --ranks 2");
    }

    @Test
    void theDeviceHasIt() {
        int margin = Math.min(1, most());
        var options = new TrainOptions();
        new CommandLine(options).parseArgs((OPTIONS + " --sm-margin " + margin + " --product-sm-margin 0").split(" "));
        options.check();
        TrainingPlan plan = options.plan(false, 1);
        assertEquals(new MultiprocessorMargin(margin, 0), plan.enqueuing().margin());
        assertNull(onItsOwnThread(() -> {
            try (Device device = Device.open();
                    var training = ModelTraining.of(device, plan.setup())) {
                assertEquals(plan.enqueuing().margin(), device.multiprocessorMargin());
            }
            return null;
        }));
    }
}
