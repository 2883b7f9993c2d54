package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.HostBuffer;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.StepGraph;
import dev.chagres.batch.StepReadback;
import dev.chagres.batch.UploadRing;
import dev.chagres.bindings.CaptureException;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A close that is refused, on another thread, while a stream captures or inside a group, leaves everything to the right close. */
@Tag("L0")
@Tag("L2")
class RefusedCloseTest {
    /** A close that throws nothing checked. */
    private interface Closing extends AutoCloseable {
        @Override
        void close();
    }

    private static void onAnotherThread(Closing one) {
        Throwable[] thrown = new Throwable[1];
        Thread thread = new Thread(() -> {
            try {
                one.close();
            } catch (RuntimeException refused) {
                thrown[0] = refused;
            }
        });
        thread.start();
        try {
            thread.join();
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
        assertEquals(WrongThreadException.class, thrown[0].getClass());
    }

    private static void refusedEverywhere(Device device, Closing one) {
        onAnotherThread(one);
        assertThrows(
                CaptureException.class,
                () -> device.stream().capture(one::close).close());
        IllegalStateException inside = assertThrows(IllegalStateException.class, () -> Communicator.group(one::close));
        assertTrue(
                inside.getMessage().startsWith("close: expected a call outside of Communicator.group"),
                inside.getMessage());
    }

    @Test
    void ofStrategies() {
        try (Device device = Device.open();
                Communicator world = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
                SmallModel model = SmallModel.plain(device, DType.FLOAT32)) {
            DataParallel training = DataParallel.of(model.parameters, world);
            refusedEverywhere(device, training::close);
            training.sumGradients();
            training.close();
            assertThrows(IllegalStateException.class, training::sumGradients);
            DataParallel.of(model.parameters, world).close();
            Mesh mesh = Mesh.of(world, MeshShape.ofOne());
            refusedEverywhere(device, mesh::close);
            assertEquals(1, mesh.along(MeshDimension.SHARD).ranks());
            mesh.close();
            assertThrows(IllegalStateException.class, () -> mesh.along(MeshDimension.SHARD));
            ModelPlan plan = new ModelPlan();
            plan.group("layer").declare("weight", Initializer.ones(), 4);
            long held = device.heldBytes();
            FullySharded sharded = FullySharded.allocate(plan, DType.FLOAT32, 1, ZeroStage.TWO, world);
            refusedEverywhere(device, sharded::close);
            sharded.sumGradients();
            sharded.close();
            assertEquals(held, device.heldBytes());
        }
    }

    @Test
    void ofWhatHoldsMemory() {
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 128, 32);
        try (Device device = Device.open()) {
            long held = device.heldBytes();
            Pass pass = Pass.training(device);
            UploadRing uploads = UploadRing.padded(device, shape, 1, 0);
            StepGraph graph = new StepGraph(uploads, shape, pass, 1, _ -> {});
            StepReadback readback = new StepReadback(device.stream(), 1, 2);
            SmallModel model = SmallModel.plain(device, DType.FLOAT32);
            AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard());
            Closing[] all = {
                graph::close, readback::close, uploads::close, pass::close, optimizer::close, model.parameters::close
            };
            for (Closing one : all) {
                refusedEverywhere(device, one);
            }
            for (Closing one : all) {
                one.close();
                one.close();
            }
            model.close();
            assertEquals(held, device.heldBytes());
        }
    }

    @Test
    void ofPinnedMemory() {
        try (Device device = Device.open()) {
            HostBuffer buffer = HostBuffer.pinned(device, 100);
            onAnotherThread(buffer::close);
            assertThrows(
                    CaptureException.class,
                    () -> device.stream().capture(buffer::close).close());
            assertEquals(100, buffer.segment().byteSize());
            buffer.close();
        }
    }
}
