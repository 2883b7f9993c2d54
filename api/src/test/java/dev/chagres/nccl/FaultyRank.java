package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.DataParallelConfig;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Work of a rank that goes on until a rank fails: bare collectives or data-parallel steps, in one of which one rank does something wrong. */
final class FaultyRank {
    /** What goes wrong in one rank. */
    enum Fault {
        THROWS_BEFORE,
        THROWS_INSIDE,
        THROWS_AFTER,
        IS_SILENT,
        CLOSES,
        GIVES_OTHER_COUNT,
        GIVES_OTHER_TYPE;

        boolean needsFullChecks() {
            return this == GIVES_OTHER_COUNT || this == GIVES_OTHER_TYPE;
        }
    }

    /** What the ranks do. */
    enum Work {
        COLLECTIVES,
        STEPS
    }

    /**
     * One fault.
     *
     * @param turn before, inside or after which collective or step
     */
    record Injection(int ranks, int victim, int turn, Fault fault, Work work, CollectiveChecks checks, long seed) {
        static Injection draw(SplittableRandom random, Fault fault) {
            int ranks = drawRanks(random, 8);
            Work work = fault.needsFullChecks() || random.nextInt(3) > 0 ? Work.COLLECTIVES : Work.STEPS;
            boolean full = fault.needsFullChecks() || random.nextInt(4) == 0;
            return new Injection(
                    ranks,
                    random.nextInt(ranks),
                    random.nextInt(work == Work.STEPS ? 3 : 12),
                    fault,
                    work,
                    full ? CollectiveChecks.FULL : CollectiveChecks.ARGUMENTS,
                    random.nextLong());
        }
    }

    /** Returns 2 to {@code most} ranks, no more than there are devices. */
    static int drawRanks(SplittableRandom random, int most) {
        return random.nextInt(2, Math.min(most, Device.count()) + 1);
    }

    /**
     * Returns how many faults of a kind are drawn: on GPUs, where ranks take seconds to meet, a fifth. {@code -Dchagres.test.faults=N} draws N
     * times as many.
     */
    static int times(int onReference) {
        int times = Provider.current() == Provider.REFERENCE ? onReference : Math.max(3, onReference / 5);
        return times * Integer.getInteger("chagres.test.faults", 1);
    }

    /** What a rank throws to fail. */
    static final class Ill extends RuntimeException {
        private static final long serialVersionUID = 1;

        Ill() {
            super("it is ill");
        }
    }

    private static final int MOST_TURNS = 1_000_000;
    private static final int COUNT = 24;
    private static final int WIDTH = 8;

    private final Rank rank;
    private final Injection injection;
    /** Open until the others have ended. */
    private final CountDownLatch others;

    private final Runnable injected;
    private final Stream stream;
    private int toldTurn = -1;
    private Runnable onTurn = () -> {};

    FaultyRank(Rank rank, Injection injection, CountDownLatch others, Runnable injected) {
        this.rank = rank;
        this.injection = injection;
        this.others = others;
        this.injected = injected;
        stream = rank.device().stream();
    }

    /** Calls {@code told} when that turn begins. */
    FaultyRank onTurn(int turn, Runnable told) {
        toldTurn = turn;
        onTurn = told;
        return this;
    }

    void run() throws Exception {
        if (injection.work == Work.STEPS) {
            steps();
        } else {
            collectives();
        }
    }

    private boolean isFaulty(int turn, Fault fault) {
        return rank.index() == injection.victim && turn == injection.turn && injection.fault == fault;
    }

    /** Returns whether the rank has nothing more to do. */
    private boolean begins(int turn) throws InterruptedException {
        if (turn == toldTurn) {
            onTurn.run();
        }
        if (isFaulty(turn, Fault.THROWS_BEFORE)) {
            injected.run();
            throw new Ill();
        }
        if (isFaulty(turn, Fault.IS_SILENT)) {
            injected.run();
            if (!others.await(20, TimeUnit.SECONDS)) {
                throw new AssertionError("the others have not ended");
            }
            return true;
        }
        return false;
    }

    private void ends(int turn) {
        if (isFaulty(turn, Fault.THROWS_AFTER)) {
            injected.run();
            throw new Ill();
        }
    }

    private void collectives() throws Exception {
        CommunicatorConfig config = rank.communicator().config();
        try (Communicator pairs = rank.communicator().split(rank.index() / 2, -rank.index(), config.withName("pairs"));
                Scope scope = rank.device().openScope()) {
            int all = COUNT * rank.count();
            Tensor x = scope.tensor(DType.INT32, all);
            Tensor y = scope.tensor(DType.INT32, all);
            x.zero(stream);
            y.zero(stream);
            SplittableRandom random = new SplittableRandom(injection.seed);
            for (int turn = 0; turn < MOST_TURNS; turn++) {
                if (begins(turn)) {
                    return;
                }
                if (isFaulty(turn, Fault.CLOSES)) {
                    injected.run();
                    rank.communicator().close();
                    return;
                }
                int kind = random.nextInt(9);
                int root = random.nextInt(rank.count());
                if (isFaulty(turn, Fault.THROWS_INSIDE)) {
                    injected.run();
                    Communicator.group(() -> {
                        call(kind, root, x, y, pairs, scope);
                        throw new Ill();
                    });
                }
                if (isFaulty(turn, Fault.GIVES_OTHER_COUNT) || isFaulty(turn, Fault.GIVES_OTHER_TYPE)) {
                    injected.run();
                    DType type = injection.fault == Fault.GIVES_OTHER_TYPE ? DType.FLOAT32 : DType.INT32;
                    Tensor wrong = scope.tensor(type, injection.fault == Fault.GIVES_OTHER_COUNT ? 5 : 4);
                    rank.communicator().allReduce(wrong, wrong, Reduction.SUM, stream);
                } else if (injection.fault.needsFullChecks() && turn == injection.turn) {
                    Tensor right = scope.tensor(DType.INT32, 4);
                    rank.communicator().allReduce(right, right, Reduction.SUM, stream);
                } else {
                    call(kind, root, x, y, pairs, scope);
                }
                rank.communicator().synchronize(stream);
                ends(turn);
            }
        }
    }

    private void call(int kind, int root, Tensor x, Tensor y, Communicator pairs, Scope scope) {
        Communicator world = rank.communicator();
        Tensor part = scope.view(y, 0, COUNT);
        switch (kind) {
            case 0 -> world.allReduce(x, y, Reduction.SUM, stream);
            case 1 -> world.allGather(part, x, stream);
            case 2 -> world.reduceScatter(x, part, Reduction.MAX, stream);
            case 3 -> world.broadcast(x, x, root, stream);
            case 4 -> world.reduce(x, x, Reduction.SUM, root, stream);
            case 5 -> world.gather(part, x, root, stream);
            case 6 -> world.allToAll(x, y, stream);
            case 7 -> pairs.allReduce(x, x, Reduction.MIN, stream);
            default ->
                Communicator.group(() -> {
                    int count = rank.count();
                    world.send(x, (rank.index() + 1) % count, stream);
                    world.receive(y, (rank.index() + count - 1) % count, stream);
                });
        }
    }

    private void steps() throws Exception {
        ModelPlan plan = new ModelPlan();
        Linear[] layers = new Linear[3];
        for (int i = 0; i < layers.length; i++) {
            layers[i] = new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), plan.group("layers." + i));
        }
        try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 7);
                DataParallel strategy = DataParallel.of(
                        parameters,
                        rank.communicator(),
                        DataParallelConfig.standard().withBucketBytes(1));
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(rank.device());
                Scope scope = rank.device().openScope()) {
            strategy.follow(pass);
            GradientNorm norm = new GradientNorm(parameters, 1);
            Tensor labelled = scope.tensor(DType.INT32, 1);
            Tensor input = scope.tensor(DType.FLOAT32, 4, WIDTH);
            input.zero(stream);
            for (int turn = 0; turn < MOST_TURNS; turn++) {
                if (begins(turn)) {
                    return;
                }
                if (isFaulty(turn, Fault.CLOSES)) {
                    injected.run();
                    return;
                }
                labelled.set(stream, 1);
                strategy.sumOverRanks(labelled);
                pass.begin();
                strategy.lastMicroBatch();
                Tensor x = input;
                for (Linear layer : layers) {
                    x = layer.forward(x, pass);
                }
                for (int i = layers.length - 1; i >= 0; i--) {
                    x = layers[i].backward(x, pass);
                    if (i == 1 && isFaulty(turn, Fault.THROWS_INSIDE)) {
                        injected.run();
                        throw new Ill();
                    }
                }
                strategy.sumGradients();
                norm.compute();
                optimizer.step(1e-3f, norm);
                ends(turn);
            }
        }
    }
}
