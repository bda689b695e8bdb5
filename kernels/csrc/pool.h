// Threads that share the items of one loop at a time.
#pragma once

#include <cstdint>
#include <type_traits>

namespace vtk {

using ItemFunction = void (*)(void* context, int64_t item);

void run_items(int64_t count, ItemFunction function, void* context);

// Calls body(item) for 0..count-1, each once, on any thread. `work` is about the number of multiply-adds of the whole
// loop: waking a thread costs microseconds, so little work stays on the caller.
template <class Body>
void parallel_for(int64_t count, double work, Body&& body) {
    if (count <= 1 || work < 1e5) {
        for (int64_t i = 0; i < count; i++) body(i);
        return;
    }
    using Plain = std::remove_reference_t<Body>;
    run_items(count, [](void* context, int64_t item) { (*static_cast<Plain*>(context))(item); }, (void*)&body);
}

}  // namespace vtk
