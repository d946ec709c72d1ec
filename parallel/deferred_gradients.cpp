#include "parallel/deferred_gradients.h"

namespace contexture::parallel {
namespace {
thread_local Deferred* active_deferred = nullptr;
}  // namespace

Deferred* Deferred::active() { return active_deferred; }
Deferred::Scope::Scope(Deferred* deferred) : before_(std::exchange(active_deferred, deferred)) {}
Deferred::Scope::~Scope() { active_deferred = before_; }

}  // namespace contexture::parallel
