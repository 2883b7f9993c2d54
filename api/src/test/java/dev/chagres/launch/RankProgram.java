package dev.chagres.launch;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * What a rank's process runs in {@link ProcessRanksTest}: sums without an end, or a few and then what the argument says. The last line of
 * standard output is {@code done N} or what {@link Ranks#run} threw.
 */
final class RankProgram {
    private static final int COUNT = 100_000;

    private RankProgram() {}

    public static void main(String[] arguments) {
        int steps = Integer.parseInt(arguments[0]);
        int thrower = Integer.parseInt(arguments[1]);
        try {
            System.out.println("done "
                    + ranks(arguments).run(rank -> sums(rank, steps, thrower)).getFirst());
        } catch (RankFailedException failed) {
            System.out.println("ranks " + failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        } catch (IllegalStateException refused) {
            System.out.println("refused " + refused.getMessage());
            System.exit(4);
        }
    }

    /** The third argument is a folder in which processes pass texts to each other; without it the environment says where they meet. */
    private static Ranks ranks(String... arguments) {
        if (arguments.length < 3) {
            return Ranks.fromEnvironment();
        }
        int rank = Integer.parseInt(System.getenv("CHAGRES_RANK"));
        int count = Integer.parseInt(System.getenv("CHAGRES_RANKS"));
        return Ranks.ofProcesses(new FileGroup(rank, count, Path.of(arguments[2])));
    }

    private static float sums(Rank rank, int steps, int thrower) {
        Stream stream = rank.device().stream();
        try (Scope scope = rank.device().openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, COUNT);
            Tensor sum = scope.tensor(DType.FLOAT32, COUNT);
            float[] values = new float[COUNT];
            Arrays.fill(values, rank.index() + 1);
            x.set(stream, values);
            for (int step = 0; step < steps; step++) {
                rank.communicator().allReduce(x, sum, Reduction.SUM, stream);
                rank.communicator().synchronize(stream);
                if (step == 0) {
                    System.out.println("begun");
                }
                if (step == 5 && rank.index() == thrower) {
                    throw new IllegalArgumentException("it is ill");
                }
            }
            return sum.toFloats(stream)[COUNT - 1];
        }
    }
}
