package dev.chagres.sharding;

import dev.chagres.internal.memory.DeviceState;
import dev.chagres.nccl.Communicator;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The open meshes of one device, in which a strategy looks up the mesh of its communicator.
 *
 * <p>Threading: the device's thread.
 */
final class OpenMeshes implements AutoCloseable {
    static final DeviceState.Attachment<OpenMeshes> OF_DEVICE = new DeviceState.Attachment<>(_ -> new OpenMeshes());

    private final List<Mesh> open = new ArrayList<>();

    private OpenMeshes() {}

    void add(Mesh mesh) {
        open.add(mesh);
    }

    void remove(Mesh mesh) {
        open.remove(mesh);
    }

    /** Returns the mesh that has made {@code communicator} of some of its ranks; null where none has. */
    @Nullable
    Mesh of(Communicator communicator) {
        return open.stream().filter(mesh -> mesh.made(communicator)).findFirst().orElse(null);
    }

    @Override
    public void close() {
        open.clear();
    }
}
