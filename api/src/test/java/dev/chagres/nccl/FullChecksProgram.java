package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.time.Duration;

/**
 * What a rank's process runs in {@link ProcessFullChecksTest}: calls in which ranks differ, or ranks that do not come. It writes a line for
 * each error, and last what {@link Ranks#run} threw, or {@code done}.
 */
final class FullChecksProgram {
    /** Longer than a busy machine takes to begin processes. */
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private static final Duration PATIENCE = Duration.ofMinutes(10);

    private final Rank rank;
    private final Communicator world;
    private final Stream stream;
    private final Scope scope;
    private final StoppedClock clock;

    private FullChecksProgram(Rank rank, Scope scope, StoppedClock clock) {
        this.rank = rank;
        this.scope = scope;
        this.clock = clock;
        world = rank.communicator();
        stream = rank.device().stream();
    }

    public static void main(String[] arguments) {
        try (StoppedClock clock = new StoppedClock()) {
            Ranks.fromEnvironment()
                    .withConfig(CommunicatorConfig.standard().withTimeout(TIMEOUT))
                    .each(rank -> {
                        try (Scope scope = rank.device().openScope()) {
                            FullChecksProgram program = new FullChecksProgram(rank, scope, clock);
                            switch (arguments[0]) {
                                case "differences" -> program.differences();
                                case "elsewhere" -> program.waitsElsewhere();
                                case "silent" -> program.comesNot(clock::pass);
                                default -> program.comesNot(() -> {});
                            }
                        }
                    });
            System.out.println("done");
        } catch (RankFailedException failed) {
            System.out.println("ranks " + failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }

    private Tensor tensor(DType dtype, long... sizes) {
        Tensor tensor = scope.tensor(dtype, Shape.of(sizes));
        tensor.zero(stream);
        return tensor;
    }

    private static void caught(Runnable call) {
        try {
            call.run();
            System.out.println("nothing was thrown");
        } catch (IllegalStateException refused) {
            System.out.println(refused.getMessage());
        }
    }

    private void differences() {
        boolean second = rank.index() == 1;
        Tensor x = tensor(DType.FLOAT32, 8);
        Tensor y = tensor(DType.FLOAT32, 8L * rank.count());
        caught(() -> {
            if (second) {
                world.allGather(x, y, stream);
            } else {
                world.allReduce(x, x, Reduction.SUM, stream);
            }
        });
        Tensor shaped = second ? tensor(DType.FLOAT32, 2, 4) : tensor(DType.FLOAT32, 4, 2);
        caught(() -> world.allReduce(shaped, shaped, Reduction.SUM, stream));
        Tensor typed = tensor(second ? DType.INT32 : DType.FLOAT32, 8);
        caught(() -> world.broadcast(typed, typed, 0, stream));
        caught(() -> world.broadcast(x, x, second ? 1 : 0, stream));
        caught(() -> Communicator.group(() -> {
            world.allGather(x, y, stream);
            world.allReduce(x, x, second ? Reduction.MAX : Reduction.SUM, stream);
        }));
        caught(() ->
                world.allReduce(second ? x : y, second ? x : y, Reduction.SUM, stream)); // another order of these two
        caught(() -> world.allReduce(second ? y : x, second ? y : x, Reduction.SUM, stream));
        if (rank.index() == 0) {
            caught(() -> world.send(x, 1, stream));
        } else if (second) {
            caught(() -> world.receive(y, 0, stream));
        }
        inASplit(x);
        inAnotherOrder(x);
        x.set(stream, 1f, 1, 1, 1, 1, 1, 1, 1);
        world.allReduce(x, x, Reduction.SUM, stream);
        System.out.println("sum " + x.toFloats(stream)[7]);
    }

    /** Ranks 2 and 0, in that order. */
    private void inASplit(Tensor x) {
        try (Communicator part =
                world.split(rank.index() % 2, -rank.index(), world.config().withName("part"))) {
            if (part.ranks() == 2) {
                caught(() -> part.allReduce(x, x, rank.index() == 0 ? Reduction.MIN : Reduction.SUM, stream));
            }
            part.allReduce(x, x, Reduction.SUM, stream);
        }
    }

    /** All three, the last two in turn: rank 0 keeps its number, and sees all ranks. */
    private void inAnotherOrder(Tensor x) {
        int key = rank.index() == 0 ? 0 : 3 - rank.index();
        try (Communicator all = world.split(0, key, world.config().withName("turned"))) {
            all.allReduce(x, x, Reduction.SUM, stream);
        }
    }

    /** Rank 2 waits for both others; rank 1 cannot come, for it waits for rank 0 in another communicator. */
    private void waitsElsewhere() throws InterruptedException {
        Tensor x = tensor(DType.INT32, 2);
        Communicator pair = world.split(
                rank.index() / 2, 0, world.config().withTimeout(PATIENCE).withName("pair"));
        if (rank.index() == 0) {
            Thread.sleep(PATIENCE);
        }
        if (rank.index() == 2) {
            clock.pass();
        }
        (rank.index() == 1 ? pair : world).allReduce(x, x, Reduction.MIN, stream);
    }

    private void comesNot(Runnable begins) throws InterruptedException {
        Tensor x = tensor(DType.FLOAT32, 2, 3);
        world.allReduce(x, x, Reduction.SUM, stream);
        System.out.println("begun");
        if (rank.index() == 1) {
            Thread.sleep(PATIENCE);
        }
        begins.run();
        world.allReduce(x, x, Reduction.SUM, stream);
    }
}
