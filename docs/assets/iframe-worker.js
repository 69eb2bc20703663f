// A browser starts no worker for pages opened from the file system. There, and only
// there, the search worker runs in a hidden frame instead, behind the same interface.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise(resolve => {
        const start = () => {
          document.body.appendChild(this.frame)
          const inside = this.frame.contentWindow
          inside.postMessage = data =>
            this.dispatchEvent(new MessageEvent("message", { data }))
          inside.importScripts = (...scripts) =>
            scripts.reduce((before, src) => before.then(() => load(inside, src)), Promise.resolve())
          load(inside, url).then(() => resolve(inside))
        }
        if (document.body) start()
        else document.addEventListener("DOMContentLoaded", start)
      })
    }
    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
  const load = (inside, src) =>
    new Promise((resolve, reject) => {
      const script = inside.document.createElement("script")
      script.src = src
      script.onload = resolve
      script.onerror = reject
      inside.document.head.appendChild(script)
    })
}
