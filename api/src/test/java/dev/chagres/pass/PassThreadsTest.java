package dev.chagres.pass;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OwnThread;
import dev.chagres.layer.Linear;
import dev.chagres.ops.ProductPlan;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass.SavingSwitch;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Settings of a pass, which only the host keeps, are refused on threads that do not drive its device. */
@Tag("L0")
@Tag("L1")
class PassThreadsTest {
    private static final class Deaf implements PassObserver {
        @Override
        public void entering(Layer layer, Direction direction, Pass pass) {}

        @Override
        public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {}
    }

    @Test
    void anotherThreadIsRefusedAndChangesNothing() {
        ModelPlan plan = new ModelPlan();
        new Linear(16, 16, Initializer.normal(1), plan.group("linear"));
        try (Device device = Device.open();
                Scope scope = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard());
                Pass pass = Pass.training(device)) {
            Sequences sequences = Sequences.packed(scope, 2, 3);
            Sequences others = Sequences.packed(scope, 5);
            PassObserver observer = new Deaf();
            pass.observe(observer);
            pass.begin(sequences);
            SavingSwitch off = pass.withoutSaving();
            Executable[] calls = {
                pass::begin,
                pass::end,
                pass::close,
                pass::abandon,
                pass::noAutocast,
                pass::withoutSaving,
                off::close,
                () -> pass.begin(others),
                () -> pass.sequences(others),
                () -> pass.autocast(quantizers),
                () -> pass.calibrate(quantizers),
                () -> pass.productPlan(ProductPlan.MEASURED),
                () -> pass.seed(1, 2, 3),
                () -> pass.observe(new Deaf()),
                () -> pass.forget(observer)
            };
            String text =
                    "device 0 belongs to thread \"" + Thread.currentThread().getName()
                            + "\", called from \"stranger\"; Device.detach() there and Device.attach() here move it";
            OwnThread.run("stranger", () -> {
                for (Executable call : calls) {
                    assertThrown(WrongThreadException.class, text, call);
                }
            });
            assertNull(pass.quantizers());
            assertFalse(pass.isCalibrating());
            assertFalse(pass.isSaving());
            assertTrue(pass.isObserved());
            assertEquals(ProductPlan.FIRST, pass.productPlan());
            assertSame(sequences, pass.sequences());
            off.close();
        }
    }

    /** What closes in any order may still be told to a pass whose device is closed. */
    @Test
    void aClosedDeviceHasNoThread() {
        Pass pass;
        PassObserver observer = new Deaf();
        SavingSwitch off;
        try (Device device = Device.open()) {
            pass = Pass.training(device);
            pass.observe(observer);
            off = pass.withoutSaving();
        }
        off.close();
        pass.abandon();
        pass.forget(observer);
        assertTrue(pass.isSaving());
        assertFalse(pass.isObserved());
        pass.close();
    }
}
