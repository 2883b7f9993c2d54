package dev.chagres.jmh;

import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** One rank of {@link ProcessTeam}: makes steps whenever a line of its input says so, and ends with its input. */
final class LayerProcess {
    private LayerProcess() {}

    /** {@code arguments}: how many steps a line begins, then those of {@link LayerSetup}. */
    public static void main(String[] arguments) {
        int steps = Integer.parseInt(arguments[0]);
        LayerSetup setup = LayerSetup.of(Arrays.copyOfRange(arguments, 1, arguments.length));
        Ranks.fromEnvironment().each(rank -> follow(rank, setup, steps));
    }

    private static void follow(Rank rank, LayerSetup setup, int steps) {
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (LayerStack layers = setup.open(rank)) {
            if (rank.index() == 0) {
                System.out.println(layers);
            }
            System.out.println(ProcessTeam.READY);
            while (ProcessTeam.STEP.equals(told.readLine())) {
                for (int i = 0; i < steps; i++) {
                    layers.run();
                }
                layers.await();
                System.out.println(ProcessTeam.DONE);
            }
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }
}
