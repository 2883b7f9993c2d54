package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.StoppedClock;
import dev.chagres.sharding.ShrinkTraining.Moment;
import dev.chagres.sharding.ShrinkTraining.Trained;
import dev.chagres.sharding.ShrinkTraining.Victim;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * What a rank's process runs in {@link ProcessShrinkTest}: training that goes on without ranks that are killed or stopped. The last line is
 * the step from which it went on, the losses and a sum of the weights' bits, or what {@link Ranks#run} threw.
 */
final class ShrinkProgram {
    private static final int MOST_RANKS = 4;

    private ShrinkProgram() {}

    /** The file of the state from which the others go on, the timeout, and then each victim: rank, step, moment. */
    public static void main(String[] arguments) {
        Path file = Path.of(arguments[0]);
        Duration timeout = Duration.ofMillis(Long.parseLong(arguments[1]));
        List<Victim> victims = new ArrayList<>();
        for (int i = 2; i < arguments.length; i += 3) {
            Victim victim = new Victim(
                    Integer.parseInt(arguments[i]),
                    Integer.parseInt(arguments[i + 1]),
                    Moment.valueOf(arguments[i + 2]));
            victims.add(victim);
            if (victim.moment() == Moment.SILENT) {
                IntStream.range(0, MOST_RANKS)
                        .filter(rank -> rank != victim.rank())
                        .forEach(rank -> victims.add(new Victim(rank, victim.step(), Moment.WAITS)));
            }
        }
        try (StoppedClock clock = new StoppedClock()) {
            System.out.println(Ranks.fromEnvironment()
                    .withConfig(
                            CommunicatorConfig.standard().withTimeout(timeout).withName("world"))
                    .run(rank -> {
                        System.out.println("begun");
                        try (ShrinkTraining training =
                                new ShrinkTraining(rank, DType.FLOAT32, victims, victim -> fail(victim, clock))) {
                            return text(training.train(file, () -> {
                                clock.stand();
                                System.out.println("goes on");
                            }));
                        }
                    })
                    .getFirst());
        } catch (RankFailedException failed) {
            System.out.println("ranks " + failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }

    /** Returns what ranks that go on from the same state must have in common, bit for bit. */
    static String text(Trained trained) {
        String losses = Arrays.stream(
                        toBits(Arrays.copyOfRange(trained.losses(), trained.begun(), ShrinkTraining.STEPS)))
                .mapToObj(Integer::toHexString)
                .collect(Collectors.joining(","));
        long bits = 0;
        for (float[] weight : trained.weights()) {
            bits = 31 * bits + Arrays.hashCode(toBits(weight));
        }
        return trained.begun() + " " + losses + " " + Long.toHexString(bits);
    }

    private static int[] toBits(float... values) {
        int[] bits = new int[values.length];
        for (int i = 0; i < bits.length; i++) {
            bits[i] = Float.floatToIntBits(values[i]);
        }
        return bits;
    }

    /** Ends this process as a crash does, or stops it until another one lets it go on. */
    private static void fail(Victim victim, StoppedClock clock) throws InterruptedException {
        if (victim.moment() == Moment.WAITS) {
            clock.pass();
            return;
        }
        if (victim.moment() == Moment.LAGS) {
            Thread.sleep(500);
            return;
        }
        signal(victim.moment() == Moment.SILENT ? "-STOP" : "-KILL");
    }

    /** Sends a signal to this process. */
    static void signal(String signal) throws InterruptedException {
        try {
            new ProcessBuilder(
                            "kill",
                            signal,
                            Long.toString(ProcessHandle.current().pid()))
                    .start()
                    .waitFor();
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }
}
