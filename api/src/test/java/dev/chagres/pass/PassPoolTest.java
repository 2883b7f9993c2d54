package dev.chagres.pass;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.RmsNorm;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.SharedWeights;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Several threads evaluate one set of weights: the numbers of one pass, one copy, any order of closing, and what is refused. */
@Tag("L0")
@Tag("L1")
class PassPoolTest {
    private static final int COLUMNS = 64;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** A norm in FLOAT32 beside products in the model's type. */
    private static Sequential model(ModelPlan plan) {
        return new Sequential(
                "model",
                new Linear(COLUMNS, 4 * COLUMNS, Initializer.normal(0.1f), plan.child("fc1")),
                new RmsNorm(NormConfig.rmsNorm(4 * COLUMNS), plan.child("norm")),
                new Linear(4 * COLUMNS, COLUMNS, Initializer.normal(0.1f), plan.child("fc2")));
    }

    private static Parameters allocate(Device device, DType dtype) {
        ModelPlan plan = new ModelPlan();
        model(plan);
        plan.declareAs(DType.FLOAT32, "scale", Initializer.zeros(), 3);
        return Parameters.allocate(device, plan, dtype, 5);
    }

    private static float[] evaluate(Sequential model, Pass pass, int seed) {
        Tensor x = pass.scope().tensor(DType.BFLOAT16, 7, COLUMNS);
        float[] values = new float[7 * COLUMNS];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(seed + i);
        }
        x.set(pass.stream(), values);
        return model.forward(x, pass).toFloats(pass.stream());
    }

    @Test
    void fourThreadsComputeWhatOnePassDoes() throws Exception {
        ModelPlan plan = new ModelPlan();
        Sequential own = model(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 5);
                Pass pass = Pass.evaluation(device)) {
            // @start region="pool"
            try (PassPool<Sequential> pool = PassPool.open(parameters, 4, PassPoolTest::model)) {
                List<CompletableFuture<float[]>> results = new ArrayList<>();
                for (int i = 0; i < 40; i++) {
                    int request = i;
                    results.add(pool.submit((model, its) -> evaluate(model, its, request)));
                }
                for (int i = 0; i < results.size(); i++) {
                    assertArrayEquals(
                            evaluate(own, pass.begin(), i), results.get(i).get());
                }
            }
            // @end
        }
    }

    @Test
    void threadsComputeAtTheSameTimeAndTakeNoMemoryForWeights() throws Exception {
        ModelPlan plan = new ModelPlan();
        wide(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 5);
                PassPool<Linear> pool = PassPool.open(parameters, 3, PassPoolTest::wide)) {
            CyclicBarrier together = new CyclicBarrier(3); // passes only if three tasks run at once
            List<CompletableFuture<Long>> held = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                held.add(pool.submit((_, pass) -> {
                    together.await(60, TimeUnit.SECONDS);
                    return pass.stream().device().peakHeldBytes();
                }));
            }
            for (CompletableFuture<Long> one : held) {
                long bytes = one.get();
                assertTrue(bytes < parameters.byteSize() / 4, () -> "a worker holds " + bytes);
            }
        }
    }

    /** Has weights of 8 MiB. */
    private static Linear wide(ModelPlan plan) {
        return new Linear(1024, 4096, Initializer.zeros(), plan.child("fc"));
    }

    @Test
    void threadsBorrowWeightsByHand() throws Exception {
        try (Device device = Device.open();
                Parameters parameters = allocate(device, DType.BFLOAT16)) {
            // @start region="sharedWeights"
            try (SharedWeights shared = SharedWeights.of(parameters)) {
                CompletableFuture<float[]> result = CompletableFuture.supplyAsync(() -> {
                    ModelPlan plan = new ModelPlan();
                    Sequential model = model(plan);
                    try (Device mine = Device.open(shared.deviceIndex());
                            Parameters _ = shared.lend(mine, plan);
                            Pass pass = Pass.evaluation(mine)) {
                        return evaluate(model, pass.begin(), 1);
                    }
                });
                assertEquals(7 * COLUMNS, result.get().length);
            }
            // @end
        }
    }

    private enum Order {
        OWNER_FIRST,
        WORKER_FIRST,
        OFFER_FIRST
    }

    /** Memory of a closed owner is kept for the borrower, and freed with it: the leak report and the reference's count see the rest. */
    @ParameterizedTest
    @EnumSource
    void closesInAnyOrder(Order order) throws Exception {
        CountDownLatch borrowed = new CountDownLatch(1);
        CountDownLatch go = new CountDownLatch(1);
        Device device = Device.open();
        long free = device.freeMemory();
        Parameters parameters = allocate(device, DType.BFLOAT16);
        SharedWeights shared = SharedWeights.of(parameters);
        Supplier<float[]> worker = () -> {
            ModelPlan plan = new ModelPlan();
            Sequential model = model(plan);
            try (Device mine = Device.open();
                    Parameters _ = shared.lend(mine, plan);
                    Pass pass = Pass.evaluation(mine)) {
                float[] before = evaluate(model, pass.begin(), 1);
                borrowed.countDown();
                go.await();
                assertArrayEquals(before, evaluate(model, pass.begin(), 1));
                return before;
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        };
        CompletableFuture<float[]> result = CompletableFuture.supplyAsync(worker);
        borrowed.await();
        switch (order) {
            case OWNER_FIRST -> {
                parameters.close();
                device.close();
                go.countDown();
                result.get();
                shared.close();
            }
            case WORKER_FIRST -> {
                go.countDown();
                result.get();
                parameters.close();
                shared.close();
            }
            case OFFER_FIRST -> {
                shared.close();
                parameters.close();
                assertThrown(
                        STATE,
                        "weights: expected ones that are shared, got those whose SharedWeights or Parameters are closed;"
                                + " call SharedWeights.of again",
                        () -> shared.lend(open.device(), planOf(4 * COLUMNS)));
                go.countDown();
                result.get();
            }
        }
        device.close();
        assertEquals(0, shared.borrowers());
        if (open.device().provider() == dev.chagres.bindings.Provider.REFERENCE) {
            assertTrue(free <= open.device().freeMemory() + (1 << 20));
        }
    }

    private static ModelPlan planOf(long inner) {
        ModelPlan plan = new ModelPlan();
        new Linear(COLUMNS, inner, Initializer.zeros(), plan.child("fc1"));
        return plan;
    }

    @Test
    void refusesToChangeWeightsThatAreShared() {
        ModelPlan plan = new ModelPlan();
        Linear layer = new Linear(COLUMNS, COLUMNS, Initializer.normal(1), plan.child("fc1"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
            Tensor weight = parameters.get("fc1.weight").weight();
            String fixed =
                    "expected one whose elements may change, got a weight that threads share, which nobody may write to"
                            + " until its SharedWeights and all that they lend to are closed";
            try (SharedWeights shared = SharedWeights.of(parameters)) {
                assertThrown(ARGUMENT, "tensor: " + fixed, () -> weight.zero(device.stream()));
                assertThrown(
                        ARGUMENT, "tensor: " + fixed, () -> parameters.weights().zero(device.stream()));
                String step =
                        "step: expected weights that only this thread reads, got those that threads share; close their"
                                + " SharedWeights and all that they lend to first";
                assertThrown(STATE, step, () -> optimizer.step(0.1f));
                assertThrown(STATE, step.replace("step", "of"), () -> SharedWeights.of(parameters));
                try (Device other = Device.open()) {
                    ModelPlan second = planOf(COLUMNS);
                    try (Parameters borrowed = shared.lend(other, second)) {
                        assertThrown(
                                ARGUMENT,
                                "tensor: " + fixed,
                                () -> borrowed.get("fc1.bias").weight().zero(other.stream()));
                        assertThrown(
                                STATE,
                                "weights: expected parameters with memory of their own, got those that SharedWeights have"
                                        + " lent; use Parameter.weight()",
                                borrowed::weights);
                        assertThrown(
                                ARGUMENT,
                                "owner: expected whole weights in the model's type, in memory of their own, got borrowed ones",
                                () -> SharedWeights.of(borrowed));
                    }
                }
                assertEquals(parameters.weights().byteSize(), shared.byteSize());
            }
            weight.zero(device.stream()); // Nobody reads it any more.
            optimizer.step(0.1f);
            assertTrue(layer.toString().contains("Linear"));
        }
    }

    @Test
    void refusesModelsThatHaveOtherWeights() {
        try (Device device = Device.open();
                Parameters parameters = allocate(device, DType.BFLOAT16);
                SharedWeights shared = SharedWeights.of(parameters);
                Device other = Device.open(Device.count() - 1)) {
            String expected = "plan: expected parameters of the model that shares its weights, got ";
            assertThrown(
                    ARGUMENT,
                    expected + "fc1.weight[8, 64] of BFLOAT16, which has [256, 64] of BFLOAT16 there",
                    () -> shared.lend(device, planOf(8)));
            ModelPlan unknown = new ModelPlan();
            unknown.declare("head", Initializer.zeros(), 2, 2);
            assertThrown(
                    ARGUMENT, expected + "head[2, 2] of BFLOAT16, which it lacks", () -> shared.lend(device, unknown));
            ModelPlan typed = new ModelPlan();
            typed.declare("scale", Initializer.zeros(), 3);
            assertThrown(
                    ARGUMENT,
                    expected + "scale[3] of BFLOAT16, which has [3] of FLOAT32 there",
                    () -> shared.lend(device, typed));
            if (other.index() != 0) {
                assertThrown(
                        ARGUMENT,
                        "device: expected number 0, which has the weights, got " + other + "; call Device.open(0)",
                        () -> shared.lend(other, planOf(4 * COLUMNS)));
            }
        }
    }

    @Test
    void tellsOfFailures() {
        try (Device device = Device.open();
                Parameters parameters = allocate(device, DType.BFLOAT16)) {
            assertThrown(
                    ARGUMENT,
                    "workers: expected at least 1, got 0",
                    () -> PassPool.open(parameters, 0, PassPoolTest::model));
            IllegalStateException refused = assertThrows(
                    STATE,
                    () -> PassPool.open(parameters, 2, _ -> {
                        throw new IllegalStateException("no model");
                    }));
            assertEquals("no model", refused.getMessage());
            PassPool<Sequential> pool = PassPool.open(parameters, 2, PassPoolTest::model);
            CompletableFuture<Void> failed = pool.submit((_, _) -> {
                throw new IOException("no file");
            });
            assertInstanceOf(
                    IOException.class,
                    assertThrows(ExecutionException.class, failed::get).getCause());
            CompletableFuture<Void> inside = pool.submit((_, _) -> {
                pool.close();
                return null;
            });
            assertThrown(STATE, "close: expected a call outside of tasks, which it waits for, got one inside", () -> {
                throw (RuntimeException)
                        assertThrows(ExecutionException.class, inside::get).getCause();
            });
            CompletableFuture<Pass> kept = pool.submit((_, pass) -> pass);
            assertThrows(WrongThreadException.class, () -> kept.join().begin());
            pool.close();
            pool.close();
            assertThrown(STATE, "the pool is closed; open another with PassPool.open", () -> pool.submit((_, _) -> 1));
        }
    }
}
