package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.CudaException;
import dev.chagres.internal.memory.Turns;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** What is closed, restarted, nested or another's is refused by name, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
class MisuseOfScopesTest {
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;

    private final ModelPlan plan = new ModelPlan();
    private final Linear linear = new Linear(16, 16, Initializer.normal(1), plan.child("linear"));
    private Device device;
    private Stream stream;
    private Scope scope;
    private Pass pass;

    @BeforeEach
    void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
        pass = Pass.training(device).begin();
    }

    @AfterEach
    void goodCallsStillWork() {
        try (Scope fresh = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1)) {
            Tensor x = fresh.tensor(DType.FLOAT32, 2, 16);
            x.zero(stream);
            assertArrayEquals(new float[32], linear.forward(x, pass.begin()).toFloats(stream));
            assertEquals(2, parameters.all().size());
        }
        pass.close();
        pass.close();
        device.close();
        device.close();
    }

    @Test
    void tensorsOfAClosedScope() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 2, 16);
        Tensor view = scope.view(tensor, 0, 32);
        scope.close();
        scope.close();
        String text = "tensor FLOAT32[2, 16] of scope of device 0 is closed: so is its scope";
        assertThrown(STATE, text, () -> tensor.zero(stream));
        assertThrown(STATE, text, () -> tensor.toFloats(stream));
        assertThrown(STATE, text, () -> tensor.set(stream, new float[32]));
        assertThrown(STATE, text, tensor::pointer);
        assertThrown(STATE, text.replace("[2, 16]", "[32]"), () -> view.zero(stream));
        assertThrown(STATE, "scope of device 0 is closed", () -> scope.tensor(DType.BYTE, 1));
        assertThrown(STATE, "scope of device 0 is closed", scope::open);
        assertThrown(STATE, "scope of device 0 is closed", scope::restart);
        try (Scope other = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1)) {
            assertThrown(STATE, text, () -> linear.forward(tensor, pass));
            assertThrown(STATE, text, () -> other.view(tensor, 0, 1));
            assertEquals(272, parameters.count());
        }
    }

    @Test
    void aParentWhileItsChildIsOpen() {
        Tensor before = scope.tensor(DType.FLOAT32, 2, 16);
        before.zero(stream);
        Scope child = scope.open();
        String text = "scope of device 0 has an open nested scope, which must be closed first";
        assertThrown(STATE, text, () -> scope.tensor(DType.BYTE, 1));
        assertThrown(STATE, text, () -> scope.view(before, 0, 1));
        assertThrown(STATE, text, scope::open);
        assertThrown(STATE, text, scope::restart);
        Tensor inside = child.tensor(DType.FLOAT32, 2);
        assertEquals(0, before.toFloats(stream)[0], "what it handed out before may be used");
        child.close();
        child.close();
        assertThrown(
                STATE,
                "tensor FLOAT32[2] of nested scope of device 0 is closed: so is its scope",
                () -> inside.zero(stream));
        assertThrown(STATE, "nested scope of device 0 is closed", () -> child.tensor(DType.BYTE, 1));
        assertTrue(scope.tensor(DType.BYTE, 1).isLive());
    }

    @Test
    void tensorsOfAnEarlierMicroBatch() {
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1)) {
            Tensor x = scope.tensor(DType.FLOAT32, 2, 16);
            x.zero(stream);
            Tensor y = linear.forward(x, pass);
            String text = "tensor FLOAT32[2, 16] of scope of device 0 is closed: the scope was restarted since";
            for (int later = 1; later < Turns.COUNT; later++) {
                pass.begin();
                assertThrown(STATE, text, () -> y.toFloats(stream));
                Tensor now = linear.forward(x, pass);
                assertThrown(STATE, text, () -> y.toFloats(stream));
                assertThrown(STATE, text, () -> linear.forward(y, pass));
                assertArrayEquals(new float[32], now.toFloats(stream));
                assertArrayEquals(new float[32], linear.backward(now, pass).toFloats(stream));
            }
            assertEquals(272, parameters.count());
        }
    }

    @Test
    void aSecondCloseOfANestedScope() {
        Scope first = scope.open();
        first.close();
        for (int later = 1; later < Turns.COUNT; later++) {
            Scope present = scope.open();
            Tensor tensor = present.tensor(DType.FLOAT32, 2);
            first.close();
            assertThrown(STATE, "nested scope of device 0 is closed", () -> first.tensor(DType.BYTE, 1));
            assertThrown(STATE, "nested scope of device 0 is closed", first::restart);
            tensor.zero(stream);
            assertTrue(present.tensor(DType.BYTE, 1).isLive());
            present.close();
        }
    }

    @Test
    void aSecondCloseOfASavingSwitch() {
        Pass.SavingSwitch first = pass.withoutSaving();
        first.close();
        for (int later = 1; later < Turns.COUNT; later++) {
            try (Pass.SavingSwitch present = pass.withoutSaving()) {
                first.close();
                assertFalse(pass.isSaving(), present::toString);
            }
            assertTrue(pass.isSaving());
        }
    }

    @Test
    void scopesThatAreOpenedAndNeverClosed() {
        Scope top = scope;
        for (int i = 0; i < 1000; i++) {
            top = top.open();
        }
        Scope last = top;
        assertThrown(
                STATE,
                "nested scope of device 0 is nested in 1000 open scopes, the most there may be; close each in the method"
                        + " that opened it",
                last::open);
        assertTrue(last.tensor(DType.BYTE, 1).isLive());
        scope.close();
        assertThrown(STATE, "nested scope of device 0 is closed", () -> last.tensor(DType.BYTE, 1));
        scope.close();
    }

    /** Closing goes from scope to scope, not down a stack of calls. */
    @Test
    void manyNestedScopesOnAShortStack() throws InterruptedException {
        for (String what : List.of("scope", "nested", "device")) {
            Throwable[] failure = new Throwable[1];
            Runnable closing = () -> {
                try (Device own = Device.open();
                        Scope bottom = own.openScope()) {
                    Scope second = bottom.open();
                    Scope top = second;
                    for (int i = 0; i < 999; i++) {
                        top = top.open();
                        top.tensor(DType.FLOAT32, 1).handle();
                    }
                    Scope last = top;
                    switch (what) {
                        case "scope" -> bottom.close();
                        case "nested" -> second.close();
                        default -> own.close();
                    }
                    assertThrown(
                            STATE,
                            what.equals("device") ? "device 0 is closed" : "nested scope of device 0 is closed",
                            () -> last.tensor(DType.BYTE, 1));
                } catch (Throwable thrown) {
                    failure[0] = thrown;
                }
            };
            Thread thread = new Thread(null, closing, "short stack", 192 << 10);
            thread.start();
            thread.join();
            assertNull(failure[0], () -> what + ": " + failure[0]);
        }
    }

    @Test
    void aRestartThatFindsNoMemoryClosesWhatWasHandedOut() {
        Tensor large = scope.tensor(DType.BYTE, 5L << 20);
        scope.tensor(DType.BYTE, 6L << 20);
        long free = device.freeMemory();
        Scope rest = device.openScope();
        long taken = free - (8L << 20);
        // Where other programs take memory meanwhile the device is not full, and the restart simply succeeds.
        try {
            rest.tensor(DType.BYTE, taken);
        } catch (CudaException full) {
            assertEquals("cudaErrorMemoryAllocation", full.codeName());
        }
        try {
            scope.restart();
        } catch (CudaException full) {
            assertEquals("cudaErrorMemoryAllocation", full.codeName());
        }
        assertFalse(large.isLive());
        rest.close();
        scope.restart();
        assertTrue(scope.tensor(DType.BYTE, 5L << 20).isLive());
    }

    @Test
    void closedDevicesStreamsAndEvents() {
        Device other = Device.open();
        Stream its = other.openStream();
        Event event = other.openEvent();
        Scope there = other.openScope(its);
        Tensor tensor = there.tensor(DType.FLOAT32, 2);
        its.close();
        its.close();
        assertThrown(STATE, "stream of device 0 is closed", () -> tensor.zero(its));
        assertThrown(STATE, "stream of device 0 is closed", () -> other.openScope(its));
        assertThrown(STATE, "stream of device 0 is closed", () -> event.record(its));
        assertThrown(STATE, "stream of device 0 is closed", its::synchronize);
        tensor.zero(other.stream());
        event.close();
        event.close();
        assertThrown(STATE, "event of device 0 is closed", () -> event.record(other.stream()));
        assertThrown(STATE, "event of device 0 is closed", event::isDone);
        assertThrown(STATE, "event of device 0 is closed", () -> other.stream().await(event));
        other.close();
        other.close();
        assertThrown(STATE, "device 0 is closed", () -> tensor.zero(other.stream()));
        assertThrown(STATE, "device 0 is closed", other::openScope);
        assertThrown(STATE, "device 0 is closed", other::openEvent);
        assertThrown(STATE, "device 0 is closed", other::freeMemory);
        assertThrown(STATE, "device 0 is closed", other::attach);
        assertThrown(STATE, "device 0 is closed", () -> HostBuffer.pinned(other, 1));
        assertThrown(STATE, "device 0 is closed", () -> Parameters.allocate(other, plan, DType.FLOAT32, 1));
        there.close();
    }

    @Test
    void layersOnAClosedStreamOrDevice() {
        Device other = Device.open();
        Stream its = other.openStream();
        ModelPlan own = new ModelPlan();
        Linear layer = new Linear(16, 16, Initializer.normal(1), own.child("layer"));
        Parameters parameters = Parameters.allocate(other, own, DType.FLOAT32, 1);
        Scope inputs = other.openScope();
        Tensor x = inputs.tensor(DType.FLOAT32, 2, 16);
        x.zero(other.stream());
        other.synchronize();
        Pass onStream = Pass.training(its).begin();
        Pass onDevice = Pass.training(other).begin();
        Tensor y = layer.forward(x, onStream);
        Tensor z = layer.forward(x, onDevice);
        its.close();
        for (Executable call : List.<Executable>of(
                () -> layer.forward(x, onStream),
                () -> layer.backward(y, onStream),
                onStream::begin,
                () -> Pass.training(its),
                () -> Pass.evaluation(its))) {
            assertThrown(STATE, "stream of device 0 is closed", call);
        }
        layer.backward(z, onDevice);
        Tensor again = layer.forward(x, onDevice);
        other.close();
        for (Executable call : List.<Executable>of(
                () -> layer.forward(x, onDevice),
                () -> layer.backward(again, onDevice),
                () -> layer.forward(x, onStream),
                onDevice::begin,
                onDevice::draw,
                () -> Pass.training(other),
                () -> new AdamW(parameters, AdamW.Config.standard()),
                () -> new GradientNorm(parameters, 1))) {
            assertThrown(STATE, "device 0 is closed", call);
        }
        onStream.close();
        onDevice.close();
        parameters.close();
    }

    @Test
    void aPassWithAnOpenNestedScope() {
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1)) {
            Tensor x = scope.tensor(DType.FLOAT32, 2, 16);
            x.zero(stream);
            Scope nested = pass.scope().open();
            String text = "scope of device 0 has an open nested scope, which must be closed first";
            assertThrown(STATE, text, () -> linear.forward(x, pass));
            assertThrown(STATE, text, pass::begin);
            nested.close();
            assertArrayEquals(new float[32], linear.forward(x, pass).toFloats(stream));
            assertEquals(272, parameters.count());
        }
    }

    @Test
    void scopesAndStreamsOfAnotherDevice() {
        try (Device other = Device.open()) {
            assertThrown(
                    IllegalArgumentException.class,
                    "onStream: expected a stream of device 0, got one of device 0",
                    () -> device.openScope(other.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    "stream: expected one of device 0, got stream of device 0",
                    () -> device.openEvent().record(other.stream()));
        }
    }

    @Test
    void eventsThatWereNotRecorded() {
        Event start = device.openEvent();
        Event end = device.openEvent();
        assertThrown(
                STATE,
                "millisSince: start was not recorded; call record(stream) where the time is wanted",
                () -> end.millisSince(start));
        start.record(stream);
        end.record(stream);
        end.synchronize();
        assertTrue(end.millisSince(start) >= 0);
    }

    @Test
    void parametersWhoseScopeIsRestartedOrClosed() {
        Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
        GradientNorm norm = new GradientNorm(parameters, 1);
        AdamW adam = new AdamW(parameters, new AdamW.Config(0.9f, 0.9f, 1e-8f, 0));
        assertThrown(
                STATE,
                "parameter linear.weight has memory already: close its Parameters first",
                () -> Parameters.allocate(device, plan, DType.FLOAT32, 1));
        Tensor x = scope.tensor(DType.FLOAT32, 2, 16);
        x.zero(stream);
        Tensor y = linear.forward(x, pass);
        parameters.scope().restart();
        for (int i = 0; i < 12; i++) {
            parameters.scope().tensor(DType.FLOAT32, 1);
        }
        String lost =
                "parameter linear.weight has lost its memory: the scope of its Parameters was restarted; close them and"
                        + " call Parameters.allocate again";
        assertThrown(STATE, lost, () -> linear.forward(x, pass));
        assertThrown(STATE, lost, () -> linear.backward(y, pass));
        String all = "the parameters have lost their memory: their scope was restarted; close them and call"
                + " Parameters.allocate again";
        assertThrown(STATE, all, norm::compute);
        assertThrown(STATE, all, parameters::weights);
        assertThrown(STATE, all, parameters::gradients);
        assertThrown(STATE, all, () -> adam.step(1e-3f));
        assertThrows(STATE, () -> adam.step(1e-3f, norm));
        parameters.close();
        assertThrows(STATE, () -> adam.step(1e-3f, norm));
        assertThrows(STATE, () -> new AdamW(parameters, new AdamW.Config(0.9f, 0.9f, 1e-8f, 0)));
        assertThrows(STATE, () -> new GradientNorm(parameters, 1));
        assertThrown(
                STATE,
                "linear: a backward call of this pass has failed, so its gradients are incomplete; call pass.begin(),"
                        + " which discards them, and repeat the step",
                () -> linear.forward(x, pass));
        pass.begin();
        assertThrown(
                STATE,
                "parameter linear.weight has lost its memory: its Parameters are closed, or the strategy that allocated"
                        + " them is; allocate others",
                () -> linear.forward(x, pass));
        adam.close();
    }
}
